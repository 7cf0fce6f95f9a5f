"""From a proposal to what can be judged, with the real compiler: what falls on the way says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.optimize.kit import H200, SCALE, candidates, compiled

from tilewright.errors import MachineError, RequestError
from tilewright.optimize.attempting import HOPELESS, MOST_VARIANTS, Builder, Variant, apply_values, screen
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.gates.base import VariantChecker
from tilewright.playbook.base import NotApplicable
from tilewright.records import Value
from tilewright.task.loading import load_task, where_is

DOUBLED = "ct.load(x, (i,), (TILE,)) * 2"
BROKEN = {
    "syntax": ("def scale(", "def scale[(", "does not load: ops.py:9: does not import: SyntaxError"),
    "import": ("import tilewright as tw", "import tilewright as tw\nimport nowhere", "ModuleNotFoundError"),
    "exit": ("import tilewright as tw", "import tilewright as tw\nraise SystemExit(3)", "does not import: SystemExit"),
    "no task": ("task = tw", "none = str(1) or tw", "does not load: "),
    "other name": ('name="scale"', 'name="fast"', "unknown task in"),
    "launch raises": ("    return tw.Launch", "    raise KeyError('M')\n    return tw.Launch", "KeyError"),
    "launch of nothing": ("(x, y, config.TILE))", "(x, y, config.TILE)), 0", "return tilewright.Launch"),
    "grid": ("(-(-N // config.TILE),)", "(0,)", "grid (0,) is not 1 to 3 positive integers"),
    "compiler": (DOUBLED, DOUBLED + " + ct.load(x, (i,), (3,))", "small"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attempting")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    file = folder / "ops.py"
    file.write_text(SCALE)
    return file


@pytest.fixture(scope="module")
def builder(file: Path) -> Builder:
    task = load_task(str(file))
    return Builder(candidates(), task, where_is(task), H200, task.selected(None), file.parent / "versions", seconds=60)


@pytest.fixture(scope="module")
def built(builder: Builder, file: Path) -> tuple[dict[str, Variant], dict[str, str]]:
    """Many versions in one go, by name: what was built, and why the others were not."""
    texts = {name: SCALE.replace(*change[:2]) for name, change in BROKEN.items()} | {
        "baseline": SCALE,
        "comment": SCALE + "# nothing\n",
        "plus": SCALE.replace(DOUBLED, f"{DOUBLED} + 1"),
        "plus again": SCALE.replace(DOUBLED, f"({DOUBLED}) + 1"),
        "other grid": SCALE.replace("(-(-N // config.TILE),)", "(2 * -(-N // config.TILE),)"),
        "other arrays": SCALE.replace("(x, y, config.TILE)", "(y, x, config.TILE)"),
        "own judge": SCALE.replace(DOUBLED, f"{DOUBLED} + 1")
        .replace("2 * x", "2 * x + 1")
        .replace('{"N": 4096}', '{"N": 256}')
        .replace("flops=lambda N: N", "flops=lambda N: 10**12"),
    }
    assert all(text != SCALE for name, text in texts.items() if name != "baseline"), "each replacement is one"
    variants, fallen = builder.build([(name, name, {file: text}) for name, text in texts.items()])
    return {str(one.value): one for one in variants}, {one.value: one.reason for one in fallen}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_built_is_an_attempt_with_a_reason(
    built: tuple[dict[str, Variant], dict[str, str]], name: str
) -> None:
    """A version's own code never ends the loop, and one broken version does not stop the others."""
    assert BROKEN[name][2] in built[1][name]
    assert name not in built[0] and "\n" not in built[1][name]


def test_the_same_machine_code_is_tried_once(built: tuple[dict[str, Variant], dict[str, str]]) -> None:
    found = built[0]
    kept, fallen = screen([found[name] for name in ("comment", "plus", "plus again")], found["baseline"])
    assert [one.value for one in kept] == ["plus"]
    assert [(one.value, one.status, one.reason) for one in fallen] == [
        ("comment", "duplicate", "same machine code and grid as the incumbent's"),
        ("plus again", "duplicate", "same machine code and grid as plus's"),
    ]


def test_the_same_machine_code_on_another_grid_is_something_else(
    built: tuple[dict[str, Variant], dict[str, str]],
) -> None:
    found = built[0]
    kept, _ = screen([found["other grid"]], found["baseline"])
    assert kept == [found["other grid"]]


def test_the_same_machine_code_on_other_arrays_is_something_else(
    built: tuple[dict[str, Variant], dict[str, str]],
) -> None:
    """It is judged, and found wrong; as a duplicate it would be called the incumbent."""
    found = built[0]
    kept, _ = screen([found["other arrays"]], found["baseline"])
    assert kept == [found["other arrays"]]


def test_what_is_predicted_far_slower_is_not_judged(built: tuple[dict[str, Variant], dict[str, str]]) -> None:
    incumbent, plus = built[0]["baseline"], built[0]["plus"]
    for times, judged in ((HOPELESS * 0.99, True), (HOPELESS * 1.01, False)):
        slow = at(plus, times * incumbent.predicted_us)
        kept, fallen = screen([slow], incumbent)
        assert bool(kept) is judged
        assert judged or (fallen[0].status == "screened" and "4.0× the incumbent's time" in fallen[0].reason)


def test_the_best_predicted_of_many_values_are_judged_in_that_order(
    built: tuple[dict[str, Variant], dict[str, str]],
) -> None:
    incumbent = built[0]["baseline"]
    many = [at(incumbent, incumbent.predicted_us * (2 - n / 20), f"v{n}") for n in range(MOST_VARIANTS + 3)]
    kept, fallen = screen(many, incumbent)
    assert [one.value for one in kept] == [f"v{n}" for n in range(MOST_VARIANTS + 2, 2, -1)]
    assert sorted(one.value for one in fallen) == ["v0", "v1", "v2"]
    assert {one.status for one in fallen} == {"screened"}


def at(one: Variant, us: float, value: str = "") -> Variant:
    """The same with another predicted time, and code of its own where it has another value."""
    predicted = {name: replace(time, us=us) for name, time in one.predicted.items()}
    codes = {name: replace(code, code_hash=code.code_hash + value) for name, code in one.codes.items()}
    return replace(one, predicted=predicted, codes=codes, value=value or one.value)


def test_a_version_never_changes_its_own_judge(built: tuple[dict[str, Variant], dict[str, str]]) -> None:
    """P-14: reference, workloads and work are the baseline's, whatever the version's file says of them."""
    baseline, own = built[0]["baseline"].task, built[0]["own judge"].task
    assert own.reference is baseline.reference and own.flops is baseline.flops
    assert own.selected(None) == baseline.selected(None)
    assert np.array_equal(own.reference(np.ones(3)), 2 * np.ones(3))


@pytest.fixture(scope="module")
def interpreting(builder: Builder) -> Iterator[VariantChecker]:
    found = VariantChecker(builder.baseline, H200, builder.workloads, 1)
    yield found
    found.close()


def test_a_version_that_agrees_with_its_own_reference_is_wrong(
    interpreting: VariantChecker, built: tuple[dict[str, Variant], dict[str, str]]
) -> None:
    assert interpreting.verdict(built[0]["own judge"]).verdict == "incorrect"
    assert interpreting.verdict(built[0]["comment"]).right
    assert interpreting.wrong_cases(built[0]["plus"])


def test_what_has_to_compile_says_why_it_does_not(builder: Builder, file: Path) -> None:
    with pytest.raises(RequestError, match="task 'scale': resumed: does not load: ops.py"):
        builder.build_one("resumed", {file: "def ("})


# Applying -------------------------------------------------------------------------------------------


def proposal(file: Path, values: Any, apply: Any) -> Proposal:
    def changed(value: Value) -> Mapping[Path, str]:
        return {file: apply(value)}

    return Proposal("T", "made up", "the end", "lossless", values, changed, 1.0, "")


def test_each_value_has_a_text_and_a_name_of_its_own(file: Path) -> None:
    change = proposal(file, lambda: (1, 2), lambda value: f"{SCALE}# {value}")
    wanted, fallen = apply_values(change, {file: SCALE}, "3-T")
    assert not fallen
    assert [(value, name) for value, name, _ in wanted] == [(1, "3-T-0"), (2, "3-T-1")]
    assert [texts[file][-3:] for _, _, texts in wanted] == ["# 1", "# 2"]


def test_a_value_that_changes_nothing_is_a_duplicate(file: Path) -> None:
    wanted, (one,) = apply_values(proposal(file, lambda: (1,), lambda value: SCALE), {file: SCALE}, "")
    assert not wanted and (one.status, one.reason) == ("duplicate", "leaves the source as it is")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotApplicable("no bounds"), "does not apply: no bounds"),
        (RequestError("no knob"), "does not apply: no knob"),
        (KeyError("x"), "does not apply: KeyError: 'x'"),
    ],
)
def test_a_value_that_does_not_apply_is_an_attempt(file: Path, error: Exception, said: str) -> None:
    def fails(value: Value) -> str:
        if value == 1:
            raise error
        return SCALE + "#"

    wanted, (one,) = apply_values(proposal(file, lambda: (1, 2), fails), {file: SCALE}, "")
    assert [value for value, *_ in wanted] == [2]
    assert (one.value, one.status, one.reason) == ("1", "failed", said)


def test_a_search_for_values_that_breaks_down_is_an_attempt(file: Path) -> None:
    def broken() -> tuple[Value, ...]:
        raise ZeroDivisionError("division by zero")

    wanted, (one,) = apply_values(proposal(file, broken, str), {file: SCALE}, "")
    assert not wanted and one.reason == "cannot look for values: ZeroDivisionError: division by zero"


def test_a_machine_that_fails_is_not_the_value_s_fault(file: Path) -> None:
    def broken() -> tuple[Value, ...]:
        raise MachineError("no compiler")

    with pytest.raises(MachineError):
        apply_values(proposal(file, broken, str), {file: SCALE}, "")


def test_the_attempt_of_a_variant_holds_its_code_and_prediction() -> None:
    attempt = compiled().attempt("wrong", "y[0] is 3")
    assert attempt.code is not None and attempt.predicted.keys() == {"small"}
