"""What tile code reads, assigns and touches: what entries move code by."""

from __future__ import annotations

import libcst as cst
import pytest

from tilewright.playbook.analyses.dataflow import Effects, dependent, names_assigned, names_read
from tilewright.source.syntax import Source

KERNEL = """
import cuda.tile as ct
from cuda.tile import load as fetch


def helper(tile):
    return ct.exp(tile) * 2


def saving(array, tile):
    ct.store(array, (0,), tile)


@ct.kernel
def kernel(a, b, c, d, N: ct.Constant[int]):
    view = b.slice(0, 0, N)
    row = ct.bid(0)
    first = ct.load(a, (row,), (N,))
    ct.store(view, (row,), first)
    saving(c, first)
    EXPRESSION
"""


@pytest.mark.parametrize(
    ("statement", "reads", "assigns"),
    [
        ("x = y + z.w", {"y", "z"}, {"x"}),
        ("x, (y, z) = f(a, key=b)", {"f", "a", "b"}, {"x", "y", "z"}),
        ("x += y", {"x", "y"}, {"x"}),
        ("x[i] = y", {"x", "i", "y"}, set()),
        ("for n in range(k):\n    s = n", {"range", "k", "n"}, {"n", "s"}),
        ("x: int = y", {"y"}, {"x"}),
        ("if (n := f(m)) > 2:\n    pass", {"f", "m"}, {"n"}),
    ],
)
def test_names(statement: str, reads: set[str], assigns: set[str]) -> None:
    node = cst.parse_statement(statement)
    assert (names_read(node), set(names_assigned(node))) == (reads, assigns)


@pytest.mark.parametrize(
    ("expression", "pure"),
    [
        ("ct.load(a, (0,), (N,)).astype(ct.float32)", True),
        ("ct.gather(d, ct.arange(N, dtype=ct.int32))", True),
        ("fetch(d, (0,), (N,))", True),
        ("helper(first)", True),
        ("min(N, 3) + ct.cdiv(N, 2)", True),
        ("ct.load(b, (0,), (N,))", False),  # stored to by way of a view
        ("view.slice(0, 0, 1).load((0,))", False),
        ("ct.load(c, (0,), (N,))", False),  # stored to by a function that is called
        ("fetch(c, (0,), (N,))", False),
        ("ct.store(d, (0,), first)", False),
        ("ct.atomic_add(d, (0,), 1)", False),
        ("saving(d, first)", False),
        ("unknown(d)", False),
    ],
)
def test_what_may_be_moved(expression: str, pure: bool) -> None:
    source = Source("kernel.py", KERNEL.replace("EXPRESSION", f"result = {expression}"))
    function = source.functions["kernel"]
    last = source.every(cst.SimpleStatementLine, function)[-1]
    assert Effects(source, function).is_pure(last) == pure


def test_an_unknown_function_may_write_everything() -> None:
    source = Source("kernel.py", KERNEL.replace("EXPRESSION", "unknown(d)"))
    assert Effects(source, source.functions["kernel"]).written is None


def test_names_of_a_star_import_are_those_of_cuda_tile() -> None:
    text = KERNEL.replace("import cuda.tile as ct", "from cuda.tile import *").replace("ct.", "")
    source = Source("kernel.py", text.replace("EXPRESSION", "x = sum(first, axis=0); helper(x); len(x)"))
    effects = Effects(source, source.functions["kernel"])
    calls = {effects.name_of(call) for call in source.every(cst.Call, source.functions["kernel"])}
    assert calls == {"bid", "load", "store", "sum", ""}
    named = Source("kernel.py", KERNEL)
    assert effects.written == Effects(named, named.functions["kernel"]).written != set()


def test_what_follows_from_a_name() -> None:
    source = Source("kernel.py", KERNEL.replace("EXPRESSION", "for n in range(row):\n        k = n + 1\n    m = N"))
    found = dependent(source, source.functions["kernel"], ["row"])
    assert found == {"row", "first", "n", "k"}


@pytest.mark.parametrize(("value", "loads"), [("tile", False), ("ct.load(a, (n,), (8,))", True)])
def test_helpers_that_call_one_another_may_write_what_they_are_given(value: str, loads: bool) -> None:
    """cuTile compiles them if a constant ends the calls."""
    helpers = f"""
def even(a, tile, n):
    return odd(a, tile, n - 1) if n > 0 else {value}


def odd(a, tile, n):
    return even(a, tile, n - 1) if n > 0 else tile
"""
    source = Source("ops.py", helpers + KERNEL.replace("EXPRESSION", "last = even(d, first, 3)"))
    effects = Effects(source, source.functions["kernel"])
    last = source.functions["kernel"].body.body[-1]
    assert effects.loads(last) == loads and not effects.is_pure(last) and not effects.stores_nothing(last)
    assert effects.written is not None and "d" in effects.written and "a" not in effects.written
    assert Effects(source, source.functions["odd"]).written is None
