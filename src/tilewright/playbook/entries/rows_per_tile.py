"""Lets a block handle ROWS rows in one tile, where it handled one row at a time.

A short row does not give a block enough work: loads wait for one another, and a reduction of one row leaves most of the
block idle. It costs registers, so long rows lose by it, and a new knob. `row_numbers` finds the row and `row_tiles`
rewrites what follows from it. On an H200 it was kept in 0 of 5 tries (bench/recorded/h200-naive-2026-11-21.json).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read, pairs_of, parameters, range_of, reaching
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.index_forms import Forms, Scalar
from tilewright.playbook.analyses.row_tiles import RowTiles
from tilewright.playbook.analyses.task_code import (
    entry_of,
    fresh_in,
    fresh_name,
    launch_of,
    space_of,
    starts,
    with_kernel_constant,
    with_knob,
)
from tilewright.playbook.analyses.tile_shapes import Shapes, tile_call
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Changes, Function, Source, argument, dotted, elements, number

ROWS = (4, 2, 8, 16)
ELEMENTS = 1 << 15
"""The most elements of one tile whose float32 values fit into the registers of a block."""


class RowsPerTile(Entry):
    about = EntryDescription(
        id="rows_per_tile",
        name="several rows a tile",
        what="tiles of ROWS rows where a block handled one row at a time; reductions along the last axis",
        when="each row is short, or the loop over a row is; rows do not depend on one another",
        when_not="rows so long that one fills the registers of a block",
        priority={"memory": 3, "balanced": 3},
        order=190,
        effect=Effect.assumed(0.9, 1.5, kept=0, of=5),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        if not (kernel := starts(facts, source)):
            return ()
        found = []
        for row in row_numbers(source, source.kernels[kernel]):
            try:
                _, width = _kernel(source, kernel, row, _knob(source))
            except NotApplicable:
                continue
            if values := _values(source, row, _elements(facts, source, kernel, width)):
                found.append(Site.at(source, row.node, f"one row a tile, {row.name}", values))
        return [site for site in found if self.applies(source, site)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = source.kernels.get(site.kernel)
        if function is None or not isinstance(value, int) or value < 2:
            raise NotApplicable(f"{source.name}: no kernel {site.kernel} for {value} rows a tile")
        rows = {row.node: row for row in row_numbers(source, function) if site.what.endswith(f" {row.name}")}
        return _applied(source, site.kernel, rows[site.node(source, rows, "no row's number begins here")], value)


def _applied(source: Source, kernel: str, row: RowNumber, value: int) -> str:
    knob, values = _knob(source), {value} if row.kind == "loop" else {1, value}
    if row.kind == "loop" and value not in _values(source, row, None):
        raise NotApplicable(f"{row.length} is not always a multiple of {value}")
    changed, _ = _kernel(source, kernel, row, knob)
    changed = with_kernel_constant(changed, kernel, knob)
    if row.kind == "block":
        axis = _grid_axis(changed, launch_of(changed).grid, row.axis)
        fewer = f"-(-{text_of(changed, axis)} // config.{knob})"
        changed = changed.changed({axis: cst.parse_expression(fewer)})
    return with_knob(changed, knob, sorted(values), value).text


def _kernel(source: Source, kernel: str, row: RowNumber, knob: str) -> tuple[Source, str | None]:
    """The file with only the kernel changed, and the length of its row tile as written."""
    function = source.kernels[kernel]
    rows = fresh_in(source, kernel, "rows")
    tiles = RowTiles(source, function, row.name, rows, knob)
    body = function.body.visit(tiles)
    assert isinstance(body, cst.BaseSuite)
    if not tiles.written:
        raise NotApplicable(f"{kernel} writes nothing that follows from {row.name}")
    changed = source.changed({function.body: body})
    changed = changed.changed(_grouped(changed, _again(changed, kernel, row), knob))
    if any(name.value == rows for name in changed.every(cst.Name, changed.kernels[kernel].body)):
        changed = _with_rows(changed, kernel, row, rows, knob)
    return changed, tiles.width


def _again(source: Source, kernel: str, row: RowNumber) -> RowNumber:
    """The definition of the row, which the rewriting keeps, in the new text."""
    found = row_numbers(source, source.kernels[kernel])
    return next(one for one in found if (one.name, one.kind) == (row.name, row.kind))


def _with_rows(source: Source, kernel: str, row: RowNumber, rows: str, knob: str) -> Source:
    """The source with a tile of the group's row numbers, assigned right after the group's own number."""
    again = _again(source, kernel, row)
    arange, int32 = source.spelled("arange"), source.spelled("int32")
    if not arange or not int32:
        raise NotApplicable(f"{source.name} imports neither arange nor int32 of cuda.tile")
    line = cst.parse_statement(f"{rows} = {row.name} * {knob} + {arange}({knob}, dtype={int32})[:, None]")
    if isinstance(again.node, cst.For):
        body = again.node.body
        assert isinstance(body, cst.IndentedBlock)
        return source.changed({body: body.with_changes(body=[line, *body.body])})
    return source.changed({again.node: cst.FlattenSentinel([again.node, line])})


def _knob(source: Source) -> str:
    taken = {str(one.evaluated_value) for one in source.every(cst.SimpleString)}
    taken |= {one.value for one in source.every(cst.Name)}
    free = (name for name in ("ROWS", "TILE_ROWS") if name not in taken)
    return next(free, None) or fresh_name(source, "ROWS_PER_TILE")


def _values(source: Source, row: RowNumber, size: int | None) -> tuple[int, ...]:
    """The numbers of rows worth trying: those that fit into the registers and divide the rows of a block."""
    fitting = [rows for rows in ROWS if size is None or rows * size <= ELEMENTS]
    if row.kind == "loop":
        lengths = _knob_values(source, row.length)
        fitting = [rows for rows in fitting if lengths and all(length % rows == 0 for length in lengths)]
    return tuple(fitting)


def _knob_values(source: Source, name: str) -> list[int]:
    """The values that the space gives a constant, where they are written down."""
    try:
        constants = argument(space_of(source), "constants", 0)
    except NotApplicable:
        return []
    values = elements(entry_of(constants, name)) if isinstance(constants, cst.Dict) else None
    found = [number(value) for value in values or []]
    return [value for value in found if isinstance(value, int)] if None not in found else []


def _elements(facts: KernelFacts, source: Source, kernel: str, width: str | None) -> int | None:
    """Elements of one row's tile in the longest workload; None where its length is no constant of the kernel."""
    if width is None or width.isdigit():
        return None if width is None else int(width)
    given: list[object] = []
    for one in source.functions[kernel].params.params:
        said = "" if one.annotation is None else source.code(one.annotation.annotation)
        if one.name.value == width and "Constant" in said:
            place = parameters(source.functions[kernel]).index(width)
            given = [launch.args[place] for launch in facts.launches]
    return max((value for value in given if isinstance(value, int)), default=None)


# The number of a row ------------------------------------------------------------------------------


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
        step = range_of(loop)[2:]
        if step and dotted(loop.target) in once and source.calls("num_blocks", inside=step[0]):
            found.append(RowNumber(dotted(loop.target), "stride", loop))
    return found


def _grouped(source: Source, row: RowNumber, count: str) -> Changes:
    """What changes in the kernel so that ``row`` counts groups of ``count`` rows. The caller changes the grid."""
    if row.kind == "block":
        return {}
    if row.kind == "stride":
        end = range_of(row.node)[1]
        return {end: cst.parse_expression(f"{source.spelled('cdiv')}({source.code(end)}, {count})")}
    fewer = f"{row.length} // {count}"
    lengths = [name for name in source.every(cst.Name, row.node) if name.value == row.length]
    inside: Changes = {name: cst.parse_expression(f"({fewer})") for name in lengths}
    return {range_of(row.loop)[0]: cst.parse_expression(fewer), **inside}


def _grid_axis(source: Source, grid: cst.BaseExpression, axis: int) -> cst.BaseExpression:
    """The expression for one axis of a grid that is written as a tuple."""
    definition = reaching(source, grid.value, grid) if isinstance(grid, cst.Name) else None
    axes = elements(definition.value if definition is not None else grid)
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
    match loop, range_of(loop):
        case cst.For(target=cst.Name(value=item), body=body), [cst.Name(value=count)]:
            pass
        case _:
            return None
    try:
        form = Forms(source, value, Shapes(source, function)).of(value)
    except NotApplicable:
        return None
    if not isinstance(form, Scalar) or len(form.terms) != 2 or form.terms.get((item,)) != 1:
        return None
    [first] = [term for term in form.terms if term != (item,)]
    if form.terms[first] != 1 or len(first) != 2 or first.count(count) != 1:
        return None
    readers = [one for one in source.every(cst.Name, body) if one.value == item]
    if len(readers) != 1 or count not in names_read(value):
        return None  # the row's place within its block is asked for elsewhere
    return RowNumber(name, "loop", line, length=count, loop=loop)


ENTRY = RowsPerTile()
