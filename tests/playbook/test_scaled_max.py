"""A maximum is scaled in place of the tile that it is taken of, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.playbook.kit import changed_lines, only, run_of
from tests.playbook.masked import CAUSAL
from tests.playbook.plain import NORM, applied, launch_facts

from tilewright.compile.compile import Unit, compile_all
from tilewright.playbook.base import NotApplicable
from tilewright.playbook.entries.mask_split import ENTRY as SPLIT
from tilewright.playbook.entries.mask_split import TWO_LOOPS as MASKED_LAST
from tilewright.playbook.entries.scaled_max import AFTER, ENTRY, TWO_LOOPS, VALUES
from tilewright.records import MachineCode
from tilewright.source.syntax import Source
from tilewright.testing.entries import H200, EntryContract, loaded

HIGHEST = "ct.max(score, axis=1, keepdims=True)"
SCALED = (
    CAUSAL.replace("out, SEEN", "out, scale, SEEN")
    .replace("out, 64", "out, SCALE, 64")
    .replace(HIGHEST, "ct.max(score * scale, axis=1, keepdims=True)")
    .replace("score - higher", "score * scale - higher")
    .replace("@ k.T", "@ k.T * SCALE")
    .replace('LOW = -float("inf")', 'LOW = -float("inf")\nSCALE = 0.25')
)
DIVIDED = SCALED.replace("score * scale", "score / scale").replace("* SCALE", "/ SCALE")
CALLED = SCALED.replace("ct.max(score * scale", "ct.max(ct.mul(scale, score)")
SMALLEST = SCALED.replace("ct.max(score * scale", "-ct.min(score * scale")
LINE = "        scores = scale * score\n        higher ="
NAMED = SCALED.replace("score * scale", "scores").replace("        higher =", LINE)
AGAIN = NAMED.replace("scores = scale", "score = scale").replace("scores", "score")
FORMS = {"divided": DIVIDED, "a call": CALLED, "a minimum": SMALLEST}


class TestScaledMax(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"written twice": SCALED, **FORMS}
    elsewhere: ClassVar = {
        "no product": CAUSAL, "no maximum": NORM, "a product with a name": NAMED, "a product with its own name": AGAIN,
    }  # fmt: skip


@pytest.mark.parametrize("low", ['-float("inf")', "-1e4"])
@pytest.mark.parametrize("scale", ["0.1274", "1e-44", "1e30", "0.0", "-0.3", 'float("nan")'])
def test_the_result_is_equal_to_the_bit(scale: str, low: str, tmp_path: Path) -> None:
    """Masked elements are the largest if they are scaled by a negative number, and NaN if they are infinite times 0."""
    texts = [SCALED, *(applied(ENTRY, SCALED, tmp_path, value) for value in VALUES)]
    before, *after = (results(text, scale, low, tmp_path) for text in texts)
    assert after == [before, before]


@pytest.mark.parametrize("scale", ["0.1274", "-0.3"])
@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_other_forms_are_equal_to_the_bit(text: str, scale: str, tmp_path: Path) -> None:
    new = applied(ENTRY, text, tmp_path, AFTER)
    assert results(new, scale, "-1e4", tmp_path) == results(text, scale, "-1e4", tmp_path)


def results(text: str, scale: str, low: str, folder: Path) -> tuple[bytes, float]:
    text = text.replace("SCALE = 0.25", f"SCALE = {scale}").replace('LOW = -float("inf")', f"LOW = {low}")
    return run_of(text.replace('"S": 500', '"S": 100'), folder)


def test_both_values_are_readable(tmp_path: Path) -> None:
    line = "higher = ct.maximum(highest, ct.max(score * scale, axis=1, keepdims=True))"
    both = "ct.max(score, axis=1, keepdims=True) * scale if scale > 0 else ct.max(score * scale, axis=1, keepdims=True)"
    new = applied(ENTRY, SCALED, tmp_path, AFTER)
    assert changed_lines(SCALED, new) == ([line], [f"higher = ct.maximum(highest, {both})"])
    doubled = applied(ENTRY, SCALED, tmp_path, TWO_LOOPS)
    assert doubled.count("for n in range(steps):") == 2 and doubled.count(line) == 1
    assert doubled.count("higher = ct.maximum(highest, ct.max(score, axis=1, keepdims=True) * scale)") == 1


def test_the_loop_has_fewer_instructions(tmp_path: Path) -> None:
    """64 × 32 scores are 16 products in each of 128 threads."""
    before = SCALED.replace("score * scale", "score * 0.25")
    new = applied(ENTRY, before, tmp_path, AFTER)
    loops = [most_arithmetic(text, tmp_path) for text in (before, new)]
    assert loops[0] - loops[1] > 8


def most_arithmetic(text: str, folder: Path) -> int:
    task = loaded(text, folder)
    [workload] = task.selected(None)
    [compiled] = compile_all(task, [Unit(workload, task.space.shipped, H200)])
    assert isinstance(compiled.code, MachineCode)
    return max(loop.mix.get("float32", 0) for loop in compiled.code.loops)


@pytest.mark.parametrize(("scale", "known"), [("0.25", "0.25"), ("half", "half")])
def test_a_scale_that_is_known_needs_no_test(scale: str, known: str, tmp_path: Path) -> None:
    text = SCALED.replace("score * scale", f"score * {scale}").replace(
        "    m = ct.bid", "    half = 0.5\n    m = ct.bid"
    )
    assert f"ct.max(score, axis=1, keepdims=True) * {known})" in applied(ENTRY, text, tmp_path, AFTER)
    assert only(ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))).values == (AFTER,)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("score * scale", "score * highest", "highest is not known to be a scalar"),
        ("score * scale", "score * -0.5", "-0.5 is not above 0"),
        ("part = ct.exp(score * scale", "part = ct.exp(score * scale * 2.0", "more than a difference"),
        ("weight = weight", "total = total + ct.sum(score * scale)\n        weight = weight", "more than a difference"),
    ],
)
def test_what_it_leaves_alone(old: str, new: str, reason: str, tmp_path: Path) -> None:
    assert old in SCALED
    refused(SCALED.replace(old, new), reason, tmp_path)


def refused(text: str, reason: str, folder: Path) -> None:
    source, facts = Source("task.py", text), launch_facts(text, folder)
    assert not ENTRY.sites(source, facts)
    with pytest.raises(NotApplicable, match=reason):
        raise NotApplicable(ENTRY.why_not(source, facts))


def test_a_tile_of_a_function_is_no_scale(tmp_path: Path) -> None:
    """Unless the function says that it takes a number."""
    helper = "def highest_of(x, s):\n    return ct.max(x * s, axis=1, keepdims=True)\n\n\n@ct.kernel\ndef attention("
    text = CAUSAL.replace(HIGHEST, "highest_of(score, 0.25)").replace("@ct.kernel\ndef attention(", helper)
    assert not ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))
    noted = (
        text.replace("(x, s)", "(x, s: float)")
        .replace("x * s", "t * s")
        .replace("    return", "    t = x + 0\n    return")
    )
    assert ENTRY.sites(Source("task.py", noted), launch_facts(noted, tmp_path))


def test_loops_that_are_copies_change_together(tmp_path: Path) -> None:
    """And masks move out of a loop with both forms of the maximum."""
    split = applied(SPLIT, SCALED, tmp_path, MASKED_LAST)
    assert len(ENTRY.sites(Source("task.py", split), launch_facts(split, tmp_path))) == 1
    new = applied(ENTRY, split, tmp_path, AFTER)
    assert new.count("if scale > 0 else") == 2
    other = applied(SPLIT, applied(ENTRY, SCALED, tmp_path, AFTER), tmp_path, MASKED_LAST)
    assert run_of(new, tmp_path) == run_of(other, tmp_path) == run_of(SCALED, tmp_path)
