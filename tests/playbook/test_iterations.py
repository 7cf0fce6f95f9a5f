"""The iterations of a loop, counted without running the kernel."""

from __future__ import annotations

import pytest

from tilewright.playbook.analyses.iterations import NotKnown, sums
from tilewright.source.syntax import Source
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

KERNEL = """
import cuda.tile as ct


def inner(x, first, *, width):
    steps = ct.cdiv(x.shape[0], width)
    for n in range(first, steps):
        pass


def deep(first, last):
    for n in range(first, 8):
        pass


def through(x, first, last):
    deep(first + 1, last=last)


@ct.kernel
def kernel(x, WIDTH: ct.Constant[int], CAUSAL: ct.Constant[bool], length):
    m, h = ct.bid(0), ct.bid(axis=1)
    if h >= 2:
        return
    end = ct.cdiv(x.shape[0], WIDTH)
    if CAUSAL:
        end = min(end, m + 1)
    loaded = ct.load(length, (0,), (1,)).item()
    rest = end - loaded
    through(x, m, loaded)
    for n in range(end):
        pass
    inner(x, m, width=WIDTH)
"""
SOURCE = Source("task.py", KERNEL)
IN_KERNEL, IN_HELPER, DEEP = (
    (name, KERNEL.split("\n").index(f"    for n in range({bounds}):") + 1)
    for name, bounds in (("kernel", "end"), ("inner", "first, steps"), ("deep", "first, 8"))
)


def launch(causal: bool) -> Launch:
    return Launch(None, (4, 3), (ArraySpec("x", (100,), "float32"), 32, causal, ArraySpec("length", (1,), "int32")))


def test_each_block_counts_unless_it_returns_before() -> None:
    """Four rows of two heads: four steps, or as many as the row's number."""
    found = sums(SOURCE, "kernel", [launch(True)], IN_KERNEL, ("4", "end"))
    assert (found.every, found.some, found.drawn) == (2 * 4 * 4, 2 * (1 + 2 + 3 + 4), False)
    found = sums(SOURCE, "kernel", [launch(False), launch(True)], IN_KERNEL, ("1", "end"))
    assert (found.every, found.some) == (16, 32 + 20)


def test_a_loop_of_a_helper_counts_for_each_call() -> None:
    found = sums(SOURCE, "kernel", [launch(True)], IN_HELPER, ("steps", "steps - first"))
    assert (found.every, found.some, found.drawn) == (2 * 4 * 4, 2 * (4 + 3 + 2 + 1), False)


def test_a_loop_of_a_helper_of_a_helper_counts_too() -> None:
    found = sums(SOURCE, "kernel", [launch(True)], DEEP, ("8", "8 - first"))
    assert (found.every, found.some, found.drawn) == (2 * 4 * 8, 2 * (7 + 6 + 5 + 4), False)
    assert sums(SOURCE, "kernel", [launch(True)], DEEP, ("1", "last")).drawn, "what is loaded and passed on"


@pytest.mark.parametrize(("causal", "calls"), [(True, 1), (False, 2)])
def test_a_call_in_a_branch_that_is_not_taken_does_not_count(causal: bool, calls: int) -> None:
    text = KERNEL.replace(
        "    inner(x, m, width=WIDTH)",
        """\
    if CAUSAL:
        m = m + 0
    else:
        inner(x, m, width=WIDTH)
    last = (m,
        inner(x, m, width=WIDTH))""",
    )
    found = sums(Source("task.py", text), "kernel", [launch(causal)], IN_HELPER, ("1", "steps"))
    assert (found.every, found.some) == (2 * 4 * calls, 2 * 4 * 4 * calls)


def test_what_is_loaded_is_drawn() -> None:
    """The same value on both sides, so that they can be compared."""
    found = sums(SOURCE, "kernel", [launch(True)], IN_KERNEL, ("loaded", "end - rest"))
    assert found.drawn and found.every == found.some and str(found) == "100% of the"


def test_an_expression_that_is_not_understood_is_not_known() -> None:
    with pytest.raises(NotKnown, match="other"):
        sums(SOURCE, "kernel", [launch(True)], IN_KERNEL, ("1", "other"))
