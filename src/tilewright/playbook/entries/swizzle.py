"""Computes the tiles of a product in bands of GROUP_SIZE_M rows, so that nearby blocks find their inputs in the L2.

The change helps if a product has more tiles than the GPU has SMs, and if its tensors exceed the L2. It adds a knob, and
a few integer operations to each block. The last band may have fewer rows: with 10×4 tiles in bands of 8, six tiles
would otherwise not be computed. If the kernel has such bands already, their height changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.best_predicted import allowed
from tilewright.playbook.analyses.block_loop import block_ids, grid_extents
from tilewright.playbook.analyses.configuration_sites import places, read_changes, written
from tilewright.playbook.analyses.dataflow import assignments, dependent, names_assigned, names_read, range_of
from tilewright.playbook.analyses.tile_shapes import indices_of
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Changes, Function, Line, Source, dotted

HEIGHTS = (8, 4, 16)
_HEIGHT = re.compile(r"GROUP(_SIZE)?_?M", re.IGNORECASE)
"""The names that kernels of Triton's and TileGym's tutorials and libraries give to the height of a band."""
IN_L2 = 0.5  # the promise if all tensors fit into the L2


@dataclass(frozen=True)
class TilePair:
    """The names of the row number and the column number of a kernel's tile of the product.

    The row number ``first`` is the index that comes first when the result is stored; ``second`` is the column number.
    ``statements`` assign the two names and nothing else. In a one-dimensional grid, they compute both from the
    expression ``linear`` and the counts ``rows`` and ``columns``. In a two-dimensional grid, ``linear`` is "", and they
    read the block ids along the two grid ``axes``.
    """

    first: str
    second: str
    statements: tuple[Line, ...]
    linear: str = ""
    rows: str = ""
    columns: str = ""
    axes: tuple[int, int] = (0, 1)


class BlockSwizzle(Entry):
    about = EntryDescription(
        id="swizzle",
        name="block swizzle",
        what="tiles in bands of GROUP_SIZE_M rows, the last band clamped, instead of row by row",
        when="a product whose blocks share rows and columns of their inputs, with more tiles than SMs",
        when_not="no two blocks load the same tiles, or everything fits into the L2",
        priority={"compute": 4, "balanced": 4, "memory": 8},
        eases=("traffic", "tile size"),
        order=130,
        effect=Effect.assumed(1.0, 1.15, kept=1, of=4),
        together=("tile_sizes",),  # bands suit wide tiles, rows high ones: TileGym's grouped products, 791 and 764 µs
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        launched = task_code.own_kernel(facts, source)
        kernels = [launched] if launched else sorted(source.kernels)
        blocks = max(math.prod(launch.grid) for launch in facts.launches)
        arrays = [facts.task.arrays(workload.dims).values() for workload in facts.workloads]
        moved = max(sum(array.nbytes for array in each) for each in arrays)
        promise = 1.0 if moved > facts.board.l2_bytes else IN_L2
        found = [*_other_heights(source, facts), *_other_literals(source, facts.kernel)]
        for kernel in kernels:
            for tiles in _tiles(source, kernel):
                if not tiles.linear and blocks <= facts.board.sms:
                    continue
                why = f"{blocks:,} blocks, {moved >> 20} MiB of tensors, an L2 of {facts.board.l2_bytes >> 20} MiB"
                what = f"tiles {tiles.first}, {tiles.second}"
                found.append(Site.at(source, tiles.statements[0], what, HEIGHTS, promise, why))
        return [site for site in found if self.applies(source, site)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.kernel
        if isinstance(value, str):
            return written(source, site, read_changes(value))
        if kernel not in source.kernels:
            raise NotApplicable(f"{source.name}: there is no kernel {kernel}")
        for line, _, literal in _literal_heights(source, kernel):
            if source.place(line) == (site.line, site.column):
                return source.changed({literal: cst.Integer(str(value))}).text
        known = {tiles.statements[0]: tiles for tiles in reversed(_tiles(source, kernel))}
        tiles = known[site.node(source, known, "no pair of tile indices in plain order")]
        if task_code.launched_here(source) != kernel:
            if not tiles.linear:
                raise NotApplicable(f"{source.name}: the grid of {kernel} is not set in this file")
            height = task_code.fresh_in(source, kernel, "GROUP_SIZE_M")
            return _banded(source, kernel, tiles, height, f"{height} = {value}").text
        height = task_code.fresh_name(source, "GROUP_SIZE_M")
        source = (_banded if tiles.linear else _flattened)(source, kernel, tiles, height)
        source = task_code.with_kernel_constant(source, kernel, height)
        return task_code.with_knob(source, height, sorted(HEIGHTS), value).text


def _other_heights(source: Source, facts: KernelFacts) -> Iterator[Site]:
    """Yields the places where a configuration has the height of the bands."""
    for place in places(source, facts):
        for name in filter(_HEIGHT.fullmatch, place.constants):
            shipped = facts.task.space.shipped
            others = [height for height in HEIGHTS if height != shipped[name]]
            values = [f"{name}={each}" for each in others if allowed(facts, shipped.replace(**{name: each}))]
            if values:
                yield place.site(f"{name} of {place.kernel}", tuple(values))


def _other_literals(source: Source, kernel: str) -> Iterator[Site]:
    """Yields the places where the kernel itself has the height of the bands, as a literal."""
    for line, name, literal in _literal_heights(source, kernel) if kernel in source.kernels else ():
        values = tuple(height for height in HEIGHTS if height != literal.evaluated_value)
        yield Site.at(source, line, f"{name} of {kernel}", values)


def _literal_heights(source: Source, kernel: str) -> Iterator[tuple[Line, str, cst.Integer]]:
    function = source.kernels[kernel]
    for line, name, value in assignments(source, function):
        if _HEIGHT.fullmatch(name) and isinstance(value, cst.Integer) and names_assigned(function)[name] == 1:
            yield line, name, value


def _banded(source: Source, kernel: str, tiles: TilePair, height: str, *before: str) -> Source:
    """Returns the source with the two names computed in bands of ``height`` rows, after the statements ``before``."""
    in_band, top, band = (task_code.fresh_in(source, kernel, name) for name in ("in_band", "top", "band"))
    lines, tile = list(before), tiles.linear
    if not tile.isidentifier():
        tile = task_code.fresh_in(source, kernel, "tile")
        lines.append(f"{tile} = {tiles.linear}")
    lines += [
        f"{in_band} = {height} * {_operand(tiles.columns)}",
        f"{top} = {tile} // {in_band} * {height}",
        f"{band} = min({_operand(tiles.rows)} - {top}, {height})  # the last band may be lower",
        f"{tiles.first} = {top} + {tile} % {in_band} % {band}",
        f"{tiles.second} = {tile} % {in_band} // {band}",
    ]
    new = [cst.parse_statement(line) for line in lines]
    first, *others = tiles.statements
    new[0] = new[0].with_changes(leading_lines=first.leading_lines)
    gone: Changes = {line: cst.FlattenSentinel([]) for line in others}
    return source.changed({first: cst.FlattenSentinel(new), **gone})


def _flattened(source: Source, kernel: str, tiles: TilePair, height: str) -> Source:
    """Returns the source with bands on a grid with one axis instead of two. The kernel gets the extents of both
    axes."""
    rows, columns = (task_code.fresh_in(source, kernel, name) for name in ("rows", "columns"))
    tiles = replace(tiles, linear=f"{source.tile_module}.bid(0)", rows=rows, columns=columns)
    grid = task_code.flat_grid(_banded(source, kernel, tiles, height))
    source = grid.source
    for parameter, axis in zip((rows, columns), tiles.axes, strict=True):
        source = task_code.with_kernel_argument(source, kernel, parameter, grid.axes[axis])
    if len(grid.axes) == 2:
        return task_code.with_grid(source, f"({grid.items},)")
    return task_code.with_grid(source, f"({grid.axes[0]} * {grid.axes[1]}, 1, {grid.axes[2]})")


def _tiles(source: Source, kernel: str) -> list[TilePair]:
    """Returns the pairs of names that count the tiles row by row, if the kernel multiplies matrices; else none."""
    function = source.kernels[kernel]
    called = [source.functions[name] for name in source.called_by([kernel])]
    products = [call for each in called for call in source.calls("mma", "matmul", "mma_scaled", inside=each)]
    if not products and not any(source.every(cst.MatrixMultiply, each) for each in called):
        return []
    pairs = (*_from_two_ids(source, kernel), *_from_one_number(source, function))
    ordered = (_ordered(source, function, tiles) for tiles in pairs)
    return [tiles for tiles in ordered if tiles is not None and _is_shared(source, function, tiles)]


def _from_two_ids(source: Source, kernel: str) -> Iterator[TilePair]:
    """Finds ``row = ct.bid(0)`` and ``column = ct.bid(1)``, if the kernel reads these ids nowhere else."""
    function = source.kernels[kernel]
    axes, extents = unless_refused(block_ids, source, kernel), unless_refused(grid_extents, source, kernel)
    if axes is None or extents is None:
        return
    counted = names_assigned(function)
    named = {
        axes[value]: (name, line)
        for line, name, value in assignments(source, function)
        if isinstance(value, cst.Call) and value in axes and counted[name] == 1
    }
    asked = sorted(axis for axis in axes.values() if axis in (0, 1))
    if asked == [0, 1] and {0, 1} <= set(named) and not {0, 1} & set(extents.values()):
        (row, first), (column, second) = named[0], named[1]
        if source.parent(first) is source.parent(second):
            yield TilePair(row, column, _in_order(source, first, second))


def _from_one_number(source: Source, function: Function) -> Iterator[TilePair]:
    """Finds ``row = tile // columns`` and ``column = tile % columns``, or the same with row and column exchanged.

    If ``tile`` also numbers a third axis, the row is ``tile // columns % rows``.
    """
    counted = names_assigned(function)
    split = [
        (line, name, value)
        for line, name, value in assignments(source, function)
        if counted[name] == 1 and isinstance(value, cst.BinaryOperation)
    ]
    for line, fast, rest in split:
        if not isinstance(rest.operator, cst.Modulo) or not isinstance(rest.left, cst.Name):
            continue
        number, width = rest.left.value, source.code(rest.right)
        for other, slow, value in split:
            quotient, extent = value, None
            if isinstance(value.operator, cst.Modulo) and isinstance(value.left, cst.BinaryOperation):
                quotient, extent = value.left, source.code(value.right)
            if not isinstance(quotient.operator, cst.FloorDivide) or dotted(quotient.left) != number:
                continue
            if source.code(quotient.right) != width or source.parent(line) is not source.parent(other):
                continue
            linear = number if extent is None else f"{number} % ({_operand(extent)} * {_operand(width)})"
            extent = extent or _slow_extent(source, function, number, width)
            if extent is not None:
                yield TilePair(slow, fast, _in_order(source, line, other), linear, extent, width)


def _in_order(source: Source, *lines: Line) -> tuple[Line, ...]:
    """Returns each line once, in the order of the text."""
    return tuple(sorted({id(line): line for line in lines}.values(), key=source.place))


def _slow_extent(source: Source, function: Function, number: str, width: str) -> str | None:
    """Returns an expression for the number of distinct values of ``number // width``; None if unknown."""
    factors = {
        source.code(other)
        for product in source.every(cst.BinaryOperation, function)
        if isinstance(product.operator, cst.Multiply)
        for factor, other in ((product.left, product.right), (product.right, product.left))
        if source.code(factor) == width and isinstance(other, cst.Name)
    }
    if len(factors) == 1:  # tiles = rows · columns
        return factors.pop()
    total = _total(source, function, number)
    return None if total is None else f"{source.tile_module}.cdiv({total}, {width})"


def _total(source: Source, function: Function, name: str) -> str | None:
    """Returns an expression for the number of distinct values of ``name`` over all blocks; None if unknown."""
    for loop in source.every(cst.For, function):
        if dotted(loop.target) == name and isinstance(loop.iter, cst.Call):
            bounds = range_of(loop)
            return source.code(bounds[1]) if len(bounds) == 3 else None
    values = [value for _, assigned, value in assignments(source, function) if assigned == name]
    ids = source.calls("bid", inside=function)
    if len(values) == 1 and isinstance(values[0], cst.Call) and values[0] in ids and values[0].args:
        return f"{source.tile_module}.num_blocks({source.code(values[0].args[0].value)})"
    return None


def _ordered(source: Source, function: Function, tiles: TilePair) -> TilePair | None:
    """Returns the pair with the row number as ``first``. Of the two names, the row number is the one on which an
    earlier index of a store depends.

    Returns None if ``tiles.statements`` assign other names, too, or if no store uses the two names in different
    indices.
    """
    names = (tiles.first, tiles.second)
    if {name for line in tiles.statements for name in names_assigned(line)} != set(names):
        return None
    for call in source.calls("store", "scatter", inside=function):
        reads = [names_read(index) for index in indices_of(call)]
        after = [dependent(source, function, [name]) for name in names]
        first, second = (next((i for i, read in enumerate(reads) if read & each), None) for each in after)
        if first is None or second is None or first == second:
            continue
        if first < second:
            return tiles
        axes = tiles.axes if tiles.linear else (1, 0)
        return TilePair(tiles.second, tiles.first, tiles.statements, tiles.linear, tiles.columns, tiles.rows, axes)
    return None


def _is_shared(source: Source, function: Function, tiles: TilePair) -> bool:
    """Returns whether one load depends only on the row of the tile, and another only on the column."""
    by_row, by_column = (dependent(source, function, [name]) for name in (tiles.first, tiles.second))
    loads = [indices_of(call) for call in source.calls("load", "gather", inside=function)]
    reads = [{name for index in indices for name in names_read(index)} for indices in loads]
    kinds = {(bool(read & by_row), bool(read & by_column)) for read in reads}
    return (True, False) in kinds and (False, True) in kinds


def _operand(text: str) -> str:
    return text if text.isidentifier() or text.endswith(")") else f"({text})"


ENTRY = BlockSwizzle()
