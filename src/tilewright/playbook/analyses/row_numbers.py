"""Finds where a kernel gets the number of its row from, and turns that into the number of a group of rows.

With one block a row (``row = ct.bid(0)``) the grid shrinks. In a loop over all rows in strides (``for row in range(bid,
M, num_blocks)``) the end shrinks. In a loop over a block's own rows (``row = ct.bid(0) * R + i``) the length shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read, pairs_of
from tilewright.playbook.analyses.index_forms import Forms, Scalar
from tilewright.playbook.analyses.reaching import reaching
from tilewright.playbook.analyses.tile_shapes import Shapes, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Changes, Function, Source, argument, dotted, elements, number


@dataclass(frozen=True, eq=False)
class RowNumber:
    """``name`` is given its value at ``node``, an assignment's line or a loop."""

    name: str
    kind: Literal["block", "stride", "loop"]
    node: cst.SimpleStatementLine | cst.For
    axis: int = 0
    """``block``: of the grid."""
    length: str = ""
    """``loop``: the constant that says how many rows a block has."""
    loop: cst.For | None = None


def row_numbers(source: Source, function: Function) -> list[RowNumber]:
    """The names of ``function`` that may number rows."""
    once = {name for name, times in names_assigned(function).items() if times == 1}
    found: list[RowNumber] = []
    for line in source.every(cst.SimpleStatementLine, function):
        single = (one for one in line.body if isinstance(one, cst.Assign) and len(one.targets) == 1)
        for target, value in (pair for one in single for pair in pairs_of(one)):
            if value is not None and (name := dotted(target)) in once:
                row = _assigned(source, function, line, name, value)
                found += [row] if row is not None else []
    for loop in source.every(cst.For, function):
        step = _range(loop, 3)
        if step is None or dotted(loop.target) not in once:
            continue
        if any(tile_call(source, call) == "num_blocks" for call in source.every(cst.Call, step[2])):
            found.append(RowNumber(dotted(loop.target), "stride", loop))
    return found


def grouped(source: Source, row: RowNumber, count: str) -> Changes:
    """What changes in the kernel so that ``row`` counts groups of ``count`` rows. The caller changes the grid."""
    if row.kind == "block":
        return {}
    if row.kind == "stride":
        assert isinstance(row.node, cst.For)
        end = (_range(row.node, 3) or [])[1]
        text = f"{source.spelled('cdiv')}({source.code(end)}, {count})"
        return {end: cst.parse_expression(text)}
    assert row.loop is not None and isinstance(row.node, cst.SimpleStatementLine)
    fewer = f"{row.length} // {count}"
    lengths = [name for name in source.every(cst.Name, row.node) if name.value == row.length]
    inside: Changes = {name: cst.parse_expression(f"({fewer})") for name in lengths}
    return {(_range(row.loop, 1) or [])[0]: cst.parse_expression(fewer), **inside}


def grid_axis(source: Source, grid: cst.BaseExpression, axis: int) -> cst.BaseExpression:
    """The expression for one axis of a grid that is written as a tuple."""
    if isinstance(grid, cst.Name):
        definition = reaching(source, grid.value, grid)
        value = definition.value if definition is not None else None
    else:
        value = grid
    axes = elements(value)
    if axes is None or axis >= len(axes):
        raise NotApplicable(f"{source.name}: the grid is not written as a tuple of its axes")
    return axes[axis]


def _assigned(
    source: Source, function: Function, line: cst.SimpleStatementLine, name: str, value: cst.BaseExpression
) -> RowNumber | None:
    if isinstance(value, cst.Call) and tile_call(source, value) == "bid":
        axis = number(argument(value, "axis", 0))
        return RowNumber(name, "block", line, axis) if isinstance(axis, int) else None
    loop = next((one for one in source.parents(line) if isinstance(one, cst.For)), None)
    length = _range(loop, 1) if loop is not None else None
    if loop is None or length is None or not isinstance(length[0], cst.Name) or not isinstance(loop.target, cst.Name):
        return None
    count, item = length[0].value, loop.target.value
    try:
        form = Forms(source, value, Shapes(source, function)).of(value)
    except NotApplicable:
        return None
    if not isinstance(form, Scalar) or len(form.terms) != 2 or form.terms.get((item,)) != 1:
        return None
    [first] = [term for term in form.terms if term != (item,)]
    blocks = [atom for atom in first if atom != count]
    if form.terms[first] != 1 or len(first) != 2 or len(blocks) != 1:
        return None
    readers = [one for one in source.every(cst.Name, loop.body) if one.value == item]
    if len(readers) != 1 or count not in names_read(value):
        return None  # the row's place within its block is asked for elsewhere
    return RowNumber(name, "loop", line, length=count, loop=loop)


def _range(loop: cst.For, arguments: int) -> list[cst.BaseExpression] | None:
    """The arguments of ``range`` in a loop, where it has that many."""
    call = loop.iter
    if not isinstance(call, cst.Call) or dotted(call.func) != "range" or len(call.args) != arguments:
        return None
    return [arg.value for arg in call.args]
