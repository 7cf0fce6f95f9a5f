"""Lets a block handle ROWS rows in one tile, where it handled one row at a time.

A short row does not give a block enough work: loads wait for one another, and a reduction of one row leaves most of the
block idle. It costs registers, so long rows lose by it, and a new knob. `row_numbers` finds the row and `row_tiles`
rewrites what follows from it. On an H200 it was kept in 0 of 5 tries (bench/recorded/h200-naive-2026-11-21.json).
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import parameters
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.grids import fresh_in, starts
from tilewright.playbook.analyses.row_numbers import RowNumber, grid_axis, grouped, row_numbers
from tilewright.playbook.analyses.row_tiles import RowTiles
from tilewright.playbook.analyses.task_code import (
    constants_of,
    fresh_name,
    launch_of,
    space_of,
    with_kernel_constant,
    with_knob,
)
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, elements, number

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
        kernel = starts(facts, source)
        if not kernel:
            return ()
        found = []
        for row in row_numbers(source, source.kernels[kernel]):
            try:
                _, width = _kernel(source, kernel, row, _knob(source))
            except NotApplicable:
                continue
            values = _values(source, row, _elements(facts, source, kernel, width))
            if values:
                found.append(Site.at(source, row.node, f"one row a tile, {row.name}", values))
        return [site for site in found if self.applies(source, site)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = source.kernels.get(site.kernel)
        if function is None or not isinstance(value, int) or value < 2:
            raise NotApplicable(f"{source.name}: no kernel {site.kernel} for {value} rows a tile")
        rows = {row.node: row for row in row_numbers(source, function) if site.what.endswith(f" {row.name}")}
        return _applied(source, site.kernel, rows[site.node(source, rows, "no row's number begins here")], value)


def _applied(source: Source, kernel: str, row: RowNumber, value: int) -> str:
    knob = _knob(source)
    values = {1, value} if row.kind != "loop" else {value}
    if row.kind == "loop" and value not in _values(source, row, None):
        raise NotApplicable(f"{row.length} is not always a multiple of {value}")
    changed, _ = _kernel(source, kernel, row, knob)
    changed = with_kernel_constant(changed, kernel, knob)
    if row.kind == "block":
        axis = grid_axis(changed, launch_of(changed).grid, row.axis)
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
    changed = changed.changed(grouped(changed, _again(changed, kernel, row), knob))
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
    taken = {one.value for one in source.every(cst.Name)} | {
        str(one.evaluated_value) for one in source.every(cst.SimpleString)
    }
    free = [name for name in ("ROWS", "TILE_ROWS") if name not in taken]
    return free[0] if free else fresh_name(source, "ROWS_PER_TILE")


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
    for one in constants.elements if isinstance(constants, cst.Dict) else ():
        key = one.key if isinstance(one, cst.DictElement) else None
        if isinstance(key, cst.SimpleString) and key.evaluated_value == name:
            found = [number(value) for value in elements(one.value) or []]
            return [value for value in found if isinstance(value, int)] if None not in found else []
    return []


def _elements(facts: KernelFacts, source: Source, kernel: str, width: str | None) -> int | None:
    """Elements of one row's tile in the longest workload; None where its length is no constant of the kernel."""
    if width is None or width.isdigit():
        return None if width is None else int(width)
    if width not in constants_of(source, kernel):
        return None
    place = parameters(source.functions[kernel]).index(width)
    given = [launch.args[place] for launch in facts.launches]
    return max((value for value in given if isinstance(value, int)), default=None)


ENTRY = RowsPerTile()
