"""A maximum is scaled in place of the tile that it is taken of, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from tests.playbook.kit import changed_lines, only, run_of
from tests.playbook.masked import CAUSAL
from tests.playbook.plain import HEAD, NORM, applied, launch_facts

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

ROWS = (
    HEAD
    + """
SCALAR = SCALE


def passed(tile):
    return tile


@ct.kernel
def rows(x, counts, y, s, T: ct.Constant[int]):
    row = ct.bid(0)
    part = ct.load(x, (row, 0), (1, T), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    tile = TILE
    ct.store(y, (row, 0), part * 0.0 + ct.max(tile * s))


task = tw.Task(
    name="rows",
    tensors={
        "x": tw.Tensor(("M", 64), "float32"),
        "counts": tw.Tensor((4,), "int32"),
        "y": tw.Output(("M", 64), "float32"),
    },
    reference=lambda x, counts: x,
    launch=lambda x, counts, y, M: tw.Launch(rows, (M,), (x, counts, y, SCALAR, 64)),
    flops=lambda M: M,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 4}},
)
"""
)


class TestScaledMax(EntryContract):
    entry = ENTRY
    examples: ClassVar = {"written twice": SCALED, **FORMS}
    elsewhere: ClassVar = {
        "no product": CAUSAL, "no maximum": NORM, "a product with a name": NAMED, "a product with its own name": AGAIN,
    }  # fmt: skip


@pytest.mark.parametrize("low", ['-float("inf")', "-1e4"])
@pytest.mark.parametrize("scale", ["0.1274", "1e-44", "1e30", "0.0", "-0.3", 'float("nan")', 'float("inf")'])
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
    both = f"{HIGHEST} * scale if 0 < scale < 1e38 else {HIGHEST.replace('score', 'score * scale')}"
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


def test_a_scale_that_a_helper_gets(tmp_path: Path) -> None:
    """Other files may call a library's helper with integers, or with a scale that is a tile."""
    helper = "def highest_of(x, s):\n    return ct.max(x * s, axis=1, keepdims=True)\n\n\n@ct.kernel\ndef attention("
    text = CAUSAL.replace(HIGHEST, "highest_of(score, 0.25)").replace("@ct.kernel\ndef attention(", helper)
    library = text[: text.index("def reference")]
    assert ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))
    for code, found in ((library, 0), (library.replace("highest_of", "_highest_of"), 1)):
        assert len(ENTRY.sites(Source("library.py", code), launch_facts(text, tmp_path))) == found
    tiles = text.replace("score, 0.25", "score, highest")
    assert not ENTRY.sites(Source("task.py", tiles), launch_facts(tiles, tmp_path))
    copied = tiles.replace("x * s", "x * t").replace("    return ct.max", "    t = s\n    return ct.max")
    assert not ENTRY.sites(Source("task.py", copied), launch_facts(copied, tmp_path))


@pytest.mark.parametrize("scale", ['float("inf")', "2.0"])
def test_an_infinite_scale_takes_the_old_form(scale: str, tmp_path: Path) -> None:
    """0 is then no number, and the maximum is the next smaller one."""
    text = ROWS.replace("TILE", "ct.minimum(part, 0.0)").replace("= SCALE", f"= {scale}")
    new = applied(ENTRY, text, tmp_path, AFTER)
    given = {"x": np.minimum(np.arange(256) % 5 - 4.0, 0)}
    assert run_of(new, tmp_path, "y", given) == run_of(text, tmp_path, "y", given)


WRAPPED = {
    "loaded": "ct.load(counts, (0,), (4,))",
    "converted": "(part * 30.0).astype(ct.int8)",
    "chosen": "ct.where(part > 0.0, 3, 2)",
    "in a helper": "passed(ct.load(counts, (0,), (4,)))",
}


@pytest.mark.parametrize("tile", WRAPPED.values(), ids=WRAPPED)
def test_integers_may_wrap(tile: str, tmp_path: Path) -> None:
    """The largest product is then not that of the largest integer: 3 billion are negative."""
    text = ROWS.replace("TILE", tile).replace("s)", "1000000000)").replace("= SCALE", "= 1")
    refused(text, "may be an integer", tmp_path)


def test_a_helper_that_gets_integers(tmp_path: Path) -> None:
    text = ROWS.replace("TILE", "ct.load(counts, (0,), (4,))").replace("ct.max(tile * s)", "highest_of(tile)")
    text = text.replace("def passed", "def highest_of(t):\n    return ct.max(t * 1000000000)\n\n\ndef passed")
    assert not ENTRY.sites(Source("task.py", text), launch_facts(text.replace("= SCALE", "= 1"), tmp_path))
    floats = text.replace("highest_of(tile)", "highest_of(part)")
    assert ENTRY.sites(Source("task.py", floats), launch_facts(floats.replace("= SCALE", "= 1"), tmp_path))


def test_a_tile_of_one_element_is_no_scale(tmp_path: Path) -> None:
    """Whatever the helper's annotation says: a condition takes no tile."""
    text = ROWS.replace("TILE", "part").replace("ct.max(tile * s)", "highest_of(tile, ct.full((1,), s, ct.float32))")
    text = text.replace("def passed", "def highest_of(t, s: float):\n    return ct.max(t * s)\n\n\ndef passed")
    text = text.replace("= SCALE", "= 2.0")
    assert not ENTRY.sites(Source("task.py", text), launch_facts(text, tmp_path))


def test_loops_that_are_copies_change_together(tmp_path: Path) -> None:
    """And masks move out of a loop with both forms of the maximum."""
    split = applied(SPLIT, SCALED, tmp_path, MASKED_LAST)
    assert len(ENTRY.sites(Source("task.py", split), launch_facts(split, tmp_path))) == 1
    new = applied(ENTRY, split, tmp_path, AFTER)
    assert new.count("if 0 < scale < 1e38 else") == 2
    other = applied(SPLIT, applied(ENTRY, SCALED, tmp_path, AFTER), tmp_path, MASKED_LAST)
    assert run_of(new, tmp_path) == run_of(other, tmp_path) == run_of(SCALED, tmp_path)
