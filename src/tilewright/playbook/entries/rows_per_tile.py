"""Lets a block compute ROWS rows in one tile instead of one row at a time.

A short row does not give a block enough work. Loads wait for one another, and a reduction of one row leaves most of the
block idle. The change adds a knob and needs registers, so kernels with long rows become slower. `row_numbers` finds the
number of the row, and `row_tiles` rewrites the values that depend on this number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.dataflow import assignments, names_assigned, names_read, range_of, reaching
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.index_forms import Forms, Scalar
from tilewright.playbook.analyses.row_tiles import RowTiles
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS, Shapes, tile_call
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Changes, Expression, Function, Source, argument, dotted, elements, number

ROWS = (4, 2, 8, 16)


class RowsPerTile(Entry):
    about = EntryDescription(
        id="rows_per_tile",
        name="several rows a tile",
        what="tiles of ROWS rows where a block handled one row at a time; reductions along the last axis",
        when="rows, or the loops over one row, are short; rows do not depend on one another",
        when_not="rows so long that one fills the registers of a block",
        priority={"memory": 3, "balanced": 3},
        eases=("bytes in flight", "issue slots"),
        order=190,
        effect=Effect.assumed(0.9, 1.5, kept=0, of=5),
        together=HINTS_OF_TILES,
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        if not (kernel := task_code.own_kernel(facts, source)):
            return []
        found = []
        for row in row_numbers(source, source.kernels[kernel]):
            changed = unless_refused(_kernel, source, kernel, row, _knob(source))
            if changed and (values := _values(source, row, _elements(facts, source, kernel, changed[1]))):
                found.append(Site.at(source, row.node, f"one row a tile, {row.name}", values))
        return [site for site in found if self.applies(source, site)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = source.kernels.get(site.kernel)
        if function is None or not isinstance(value, int) or value < 2:
            raise NotApplicable(f"{source.name}: {site.kernel} cannot have tiles of {value} rows")
        rows = {row.node: row for row in row_numbers(source, function) if site.what.endswith(f" {row.name}")}
        row = rows[site.node(source, rows, "no statement here computes the number of a row")]
        knob, values = _knob(source), {value} if row.kind == "loop" else {1, value}
        if row.kind == "loop" and value not in _values(source, row, None):
            raise NotApplicable(f"{row.length} is not always a multiple of {value}")
        changed, _ = _kernel(source, site.kernel, row, knob)
        changed = task_code.with_kernel_constant(changed, site.kernel, knob)
        if row.kind == "block":
            axis = _grid_axis(changed, task_code.launch_of(changed).grid, row.axis)
            fewer = f"-(-{text_of(changed, axis)} // config.{knob})"
            changed = changed.changed({axis: cst.parse_expression(fewer)})
        return task_code.with_knob(changed, knob, sorted(values), value).text


def _kernel(source: Source, kernel: str, row: RowNumber, knob: str) -> tuple[Source, str | None]:
    """Returns the source with only the kernel changed, and the length of the row tile as text. The length is None if
    the kernel loads no tile."""
    function = source.kernels[kernel]
    rows = task_code.fresh_in(source, kernel, "rows")
    tiles = RowTiles(source, function, row.name, rows, knob)
    body = function.body.visit(tiles)
    assert isinstance(body, cst.BaseSuite)
    if not tiles.written:
        raise NotApplicable(f"{kernel} stores nothing that depends on {row.name}")
    changed = source.changed({function.body: body})
    changed = changed.changed(_grouped(changed, _again(changed, kernel, row), knob))
    if any(name.value == rows for name in changed.every(cst.Name, changed.kernels[kernel].body)):
        changed = _with_rows(changed, kernel, row, rows, knob)
    return changed, tiles.width


def _again(source: Source, kernel: str, row: RowNumber) -> RowNumber:
    """Finds ``row`` again in a changed ``source``, by its name and kind."""
    found = row_numbers(source, source.kernels[kernel])
    return next(each for each in found if (each.name, each.kind) == (row.name, row.kind))


def _with_rows(source: Source, kernel: str, row: RowNumber, rows: str, knob: str) -> Source:
    """Returns the source with a new statement, which assigns a tile to the name ``rows``.

    The tile has the numbers of all rows in a group, and the shape (``knob``, 1). The statement comes after the
    statement that computes the group's number. In a loop over groups, it is the first of the body.
    """
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
    taken = {str(text.evaluated_value) for text in source.every(cst.SimpleString)}
    taken |= {name.value for name in source.every(cst.Name)}
    free = (name for name in ("ROWS", "TILE_ROWS") if name not in taken)
    return next(free, None) or task_code.fresh_name(source, "ROWS_PER_TILE")


def _values(source: Source, row: RowNumber, size: int | None) -> tuple[int, ...]:
    """Returns the counts of rows to try. They divide a block's rows, and tiles of so many rows fit into registers."""
    fitting = [rows for rows in ROWS if size is None or rows * size <= FIT_IN_REGISTERS]
    if row.kind == "loop":
        lengths = _knob_values(source, row.length)
        fitting = [rows for rows in fitting if lengths and all(length % rows == 0 for length in lengths)]
    return tuple(fitting)


def _knob_values(source: Source, name: str) -> list[int]:
    """Returns the values that the space lists for a constant; empty if they are not all written as integers."""
    space = unless_refused(task_code.space_of, source)
    constants = argument(space, "constants", 0) if space is not None else None
    values = elements(task_code.entry_of(constants, name)) if isinstance(constants, cst.Dict) else None
    found = [number(value) for value in values or []]
    return [value for value in found if isinstance(value, int)] if None not in found else []


def _elements(facts: KernelFacts, source: Source, kernel: str, width: str | None) -> int | None:
    """Returns the number of elements in one row's tile, the largest of all workloads.

    None if the length ``width`` is neither an integer literal nor a constant of the kernel.
    """
    if width is None or width.isdigit():
        return None if width is None else int(width)
    params = source.functions[kernel].params.params
    constants = [
        place
        for place, param in enumerate(params)
        if param.name.value == width and param.annotation and "Constant" in source.code(param.annotation.annotation)
    ]
    given = [launch.args[place] for place in constants for launch in facts.launches]
    return max((value for value in given if isinstance(value, int)), default=None)


@dataclass(frozen=True, eq=False)
class RowNumber:
    """A variable that numbers rows, and the statement or loop ``node`` that assigns it.

    kind: ``block`` for a block id along the ``axis`` of the grid; ``stride`` for the variable of a loop over all rows
        whose step is the number of blocks; ``loop`` for a number that is computed in a ``loop`` over a block's rows.
    length: for the kind ``loop``, the name of the constant with the number of a block's rows.
    """

    name: str
    kind: Literal["block", "stride", "loop"]
    node: cst.SimpleStatementLine | cst.For
    axis: int = 0
    length: str = ""
    loop: cst.For | None = None


def row_numbers(source: Source, function: Function) -> list[RowNumber]:
    """Returns the names of ``function`` that may number rows."""
    once = {name for name, times in names_assigned(function).items() if times == 1}
    named = [(line, name, value) for line, name, value in assignments(source, function) if name in once]
    found = [row for line, name, value in named if (row := _assigned(source, function, line, name, value))]
    for loop in source.every(cst.For, function):
        step = range_of(loop)[2:]
        if step and dotted(loop.target) in once and source.calls("num_blocks", inside=step[0]):
            found.append(RowNumber(dotted(loop.target), "stride", loop))
    return found


def _grouped(source: Source, row: RowNumber, count: str) -> Changes:
    """Returns the changes to the kernel after which ``row`` counts groups of ``count`` rows.

    Empty if the row is a block id: the caller changes the grid instead.
    """
    if row.kind == "block":
        return {}
    if row.kind == "stride":
        end = range_of(row.node)[1]
        return {end: cst.parse_expression(f"{source.spelled('cdiv')}({source.code(end)}, {count})")}
    fewer = f"{row.length} // {count}"
    lengths = [name for name in source.every(cst.Name, row.node) if name.value == row.length]
    inside: Changes = {name: cst.parse_expression(f"({fewer})") for name in lengths}
    return {range_of(row.loop)[0]: cst.parse_expression(fewer), **inside}


def _grid_axis(source: Source, grid: Expression, axis: int) -> Expression:
    """Returns the expression for one axis of a grid. Raises `NotApplicable` if the grid is not written as a tuple."""
    definition = reaching(source, grid.value, grid) if isinstance(grid, cst.Name) else None
    axes = elements(definition.value if definition is not None else grid)
    if axes is None or axis >= len(axes):
        raise NotApplicable(f"{source.name}: the grid is not written as a tuple of its axes")
    return axes[axis]


def _assigned(
    source: Source, function: Function, line: cst.SimpleStatementLine, name: str, value: Expression
) -> RowNumber | None:
    """Returns the row number that the assignment ``name = value`` computes; None if the name numbers no rows."""
    if isinstance(value, cst.Call) and tile_call(source, value) == "bid":
        axis = number(argument(value, "axis", 0))
        return RowNumber(name, "block", line, axis) if isinstance(axis, int) else None
    loop = next((above for above in source.parents(line) if isinstance(above, cst.For)), None)
    match loop, range_of(loop):
        case cst.For(target=cst.Name(value=item), body=body), [cst.Name(value=count)]:
            pass
        case _:
            return None
    form = unless_refused(Forms(source, value, Shapes(source, function)).of, value)
    if not isinstance(form, Scalar) or len(form.terms) != 2 or form.terms.get((item,)) != 1:
        return None
    [first] = [term for term in form.terms if term != (item,)]
    if form.terms[first] != 1 or len(first) != 2 or first.count(count) != 1:
        return None
    readers = [node for node in source.every(cst.Name, body) if node.value == item]
    if len(readers) != 1 or count not in names_read(value):
        return None  # other code reads the row's number within its block
    return RowNumber(name, "loop", line, length=count, loop=loop)


ENTRY = RowsPerTile()
