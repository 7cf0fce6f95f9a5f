"""Lets a block compute several rows in one tile instead of one row at a time.

A short row does not give a block enough work. Loads wait for one another, and a reduction of one row leaves most of the
block idle. The change adds a knob and needs registers, so kernels with long rows become slower. `row_numbers` finds the
number of the row, and `row_tiles` rewrites the values that depend on this number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses import dataflow, task_code
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.row_tiles import RowTiles
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS, tile_call
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    unless_refused,
)
from tilewright.playbook.rewriting import Rewritable, Rewriting, starting_with
from tilewright.source.syntax import Changes, Expression, Function, Line, Source, argument, dotted, elements, number

ROWS, KNOB = (4, 2, 8, 16), "TILE_ROWS"


@dataclass(frozen=True, eq=False)
class RowNumber(Rewritable[Line | cst.For]):
    """A variable that numbers rows, and the statement or loop ``node`` that assigns it.

    It is a block id along the ``axis`` of the grid; or the variable of the loop ``node`` over all rows, whose step is
    the number of blocks; or computed in a loop over the rows of a block. Only then ``length`` names their number.
    """

    name: str
    axis: int = 0
    length: str = ""


class RowsPerTile(Rewriting[RowNumber]):
    about = EntryDescription(
        id="rows_per_tile",
        name="several rows a tile",
        what="tiles of TILE_ROWS rows where a block handled one row at a time; reductions along the last axis",
        when="rows, or the loops over one row, are short; rows do not depend on one another",
        when_not="rows so long that one fills the registers of a block",
        priority={"memory": 3, "balanced": 3},
        eases=("bytes in flight", "issue slots"),
        order=190,
        effect=Effect.assumed(0.9, 1.5, kept=0, of=5),
        together=HINTS_OF_TILES,
    )
    missing = "no statement here computes the number of a row"
    needs_launch = True

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        fitting = {row: _values(source, row, facts) for row in self.found(source, facts)}
        sites = [row.site(source, values=values) for row, values in fitting.items() if values]
        return [site for site in sites if self.applies(source, site)]

    def places(self, source: Source, function: Function) -> list[RowNumber]:
        return row_numbers(source, function)


def _values(source: Source, row: RowNumber, facts: KernelFacts) -> tuple[int, ...]:
    """Returns the counts of rows to try. They divide a block's rows, and tiles of so many rows fit into registers."""
    changed = unless_refused(_kernel, source, facts.kernel, row.name, KNOB)
    if changed is None:
        return ()
    sizes = [str(task_code.passed(source, launch).get(changed[1], changed[1])) for launch in facts.launches]
    most = FIT_IN_REGISTERS // max((int(size) for size in sizes if size.isdigit()), default=1)
    return tuple(rows for rows in ROWS if rows <= most and unless_refused(_divides, source, row, rows))


def _divides(source: Source, row: RowNumber, count: int) -> bool:
    """Returns whether the rows of a block are a multiple of ``count`` for each value that the space lists."""
    if not row.length:
        return True
    constants = argument(task_code.space_of(source), "constants", 0)
    listed = task_code.entry_of(constants, row.length) if isinstance(constants, cst.Dict) else None
    lengths = [number(length) for length in elements(listed) or ()]
    return bool(lengths) and all(isinstance(length, int) and length % count == 0 for length in lengths)


def _in_groups(source: Source, kernel: str, name: str, count: int) -> str:
    """Returns the text in which each tile has ``count`` rows."""
    row, knob = _row(source, kernel, name), task_code.fresh_name(source, KNOB)
    if not _divides(source, row, count):
        raise NotApplicable(f"{row.length} is not always a multiple of {count}")
    changed = task_code.with_kernel_constant(_kernel(source, kernel, name, knob)[0], kernel, knob)
    if not row.length and not isinstance(row.node, cst.For):
        axis = _grid_axis(changed, task_code.launch_of(changed).grid, row.axis)
        fewer = f"-(-{text_of(changed, axis)} // config.{knob})"
        changed = changed.changed({axis: cst.parse_expression(fewer)})
    return task_code.with_knob(changed, knob, (count,) if row.length else (1, count), count).text


def _kernel(source: Source, kernel: str, name: str, knob: str) -> tuple[Source, str]:
    """Returns the source with only the kernel changed, and the length of the row tile as text. The length is "" if the
    kernel loads no tile."""
    function, rows = source.kernels[kernel], task_code.fresh_in(source, kernel, "rows")
    tiles = RowTiles(source, function, name, rows, knob)
    body = function.body.visit(tiles)
    assert isinstance(body, cst.BaseSuite)
    source = source.changed({function.body: body})
    if not tiles.written:
        raise NotApplicable(f"{kernel} stores nothing that depends on {name}")
    row = _row(source, kernel, name)
    numbers = _numbered(source, row, rows, knob) if rows in dataflow.names_read(source.kernels[kernel].body) else {}
    return source.changed({**_grouped(source, row, knob), **numbers}), tiles.width


def _numbered(source: Source, row: RowNumber, rows: str, knob: str) -> Changes:
    """Returns the change that assigns a tile to the name ``rows``: the numbers of all rows in a group, of the shape
    (``knob``, 1). The statement comes after the statement that computes the group's number."""
    arange, int32 = source.spelled("arange"), source.spelled("int32")
    if not arange or not int32:
        raise NotApplicable(f"{source.name} imports neither arange nor int32 of cuda.tile")
    line = cst.parse_statement(f"{rows} = {row.name} * {knob} + {arange}({knob}, dtype={int32})[:, None]")
    if isinstance(row.node, cst.For):
        return {row.node.body: starting_with(line)}
    return {row.node: lambda new: cst.FlattenSentinel([new, line])}


def _grouped(source: Source, row: RowNumber, count: str) -> Changes:
    """Returns the changes to the kernel after which ``row`` counts groups of ``count`` rows.

    Empty if the row is a block id: the caller changes the grid instead.
    """
    if isinstance(row.node, cst.For):
        end = dataflow.range_of(row.node)[1]
        return {end: cst.parse_expression(f"{source.spelled('cdiv')}({source.code(end)}, {count})")}
    if not row.length:
        return {}
    fewer = f"{row.length} // {count}"
    lengths = [name for name in source.every(cst.Name, row.node) if name.value == row.length]
    loop = next(above for above in source.parents(row.node) if isinstance(above, cst.For))
    inside: Changes = {name: cst.parse_expression(f"({fewer})") for name in lengths}
    return {dataflow.range_of(loop)[0]: cst.parse_expression(fewer), **inside}


def _grid_axis(source: Source, grid: Expression, axis: int) -> Expression:
    """Returns the expression for one axis of a grid. Raises `NotApplicable` if the grid is not written as a tuple."""
    definition = dataflow.reaching(source, grid.value, grid) if isinstance(grid, cst.Name) else None
    axes = elements(definition.value if definition is not None else grid)
    if axes is None or axis >= len(axes):
        raise NotApplicable(f"{source.name}: the grid is not written as a tuple of its axes")
    return axes[axis]


def row_numbers(source: Source, function: Function) -> list[RowNumber]:
    """Returns the names of ``function`` that may number rows."""
    found: list[RowNumber] = []

    def add(node: Line | cst.For, name: str, axis: int = 0, length: str = "") -> None:
        if dataflow.names_assigned(function)[name] == 1:
            rewrites = {rows: partial(_in_groups, source, function.name.value, name, rows) for rows in ROWS}
            found.append(RowNumber(node, f"one row a tile, {name}", rewrites, name, axis, length))

    for line, name, value in dataflow.assignments(source, function):
        if isinstance(value, cst.Call) and tile_call(source, value) == "bid":
            axis = number(argument(value, "axis", 0))
            if isinstance(axis, int):
                add(line, name, axis)
    for loop, line, name, base in dataflow.counted_indices(
        source, function
    ):  # row = block * count + i, for i in range(count)
        match dataflow.range_of(loop), base:
            case [cst.Name(value=count)], cst.BinaryOperation(left=left, operator=cst.Multiply(), right=right):
                if count in (dotted(left), dotted(right)):
                    add(line, name, length=count)
    for loop in source.every(cst.For, function):
        if (step := dataflow.range_of(loop)[2:]) and source.calls("num_blocks", inside=step[0]):
            add(loop, dotted(loop.target))
    return found


def _row(source: Source, kernel: str, name: str) -> RowNumber:
    return next(row for row in row_numbers(source, source.kernels[kernel]) if row.name == name)


ENTRY = RowsPerTile()
