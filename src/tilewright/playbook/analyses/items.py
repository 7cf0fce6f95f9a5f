"""A kernel that does one item a block, changed into one that does several: in a loop, told how many there are."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.block_loop import block_ids, grid_extents, is_persistent, looped
from tilewright.playbook.analyses.grids import Grid, fresh_in
from tilewright.playbook.analyses.task_code import with_kernel_argument
from tilewright.playbook.base import NotApplicable, Site
from tilewright.source.syntax import Source


def one_item_kernel(source: Source, site: Site) -> str:
    """The kernel of ``site``, where it stands and does one item a block. Raises `NotApplicable`."""
    kernel = site.kernel
    function = source.kernels.get(kernel)
    if function is None or source.place(function) != (site.line, site.column):
        raise NotApplicable(f"{source.name}:{site.line}: no kernel {kernel}")
    if is_persistent(source, kernel) or not block_ids(source, kernel):
        raise NotApplicable(f"{kernel} does not do one item a block")
    return kernel


def with_items(grid: Grid, kernel: str, header: str, *, guarded: bool = False) -> Source:
    """The kernel with its body under ``header`` for each item, and given the extents that it needs.

    ``header`` is the line of a loop, with ``{item}`` for its variable and ``{items}`` for their number. Where
    ``guarded``, its variable may go beyond the last item. The items count along the grid as the hardware
    starts blocks: axis 0 first. The grid of the launch is for the caller to set. Raises `NotApplicable`.
    """
    source = grid.source
    axes = [axis for axis, extent in enumerate(grid.axes) if extent != "1"] or [0]
    asked = {*block_ids(source, kernel).values(), *grid_extents(source, kernel).values()}
    if beyond := sorted(one for one in asked if one >= len(grid.axes)):
        raise NotApplicable(f"{kernel} asks for axis {beyond[0]} of a grid of {len(grid.axes)}")
    *inner, last = axes
    names = {axis: fresh_in(source, kernel, f"grid_{axis}") for axis in inner}
    items = fresh_in(source, kernel, "items")
    indices, extents = dict.fromkeys(range(len(grid.axes)), "0"), dict.fromkeys(range(len(grid.axes)), "1")
    for place, axis in enumerate(axes):
        index = _quotient("{item}", [names[one] for one in axes[:place]])
        indices[axis] = index if axis == last else f"{index} % {names[axis]}"
    extents |= names | {last: _quotient(items, list(names.values()))}
    line = header.replace("ct.", f"{source.tile_module}.").replace("{items}", items)
    guard = items if guarded else None
    text = looped(source, kernel, line, fresh_in(source, kernel, "item"), indices, extents, guard=guard)
    source = Source(source.name, text)
    used = {one.value for one in source.every(cst.Name, source.kernels[kernel].body)}
    for name, expression in [*((names[axis], grid.axes[axis]) for axis in inner), (items, grid.items)]:
        if name in used:
            source = Source(source.name, with_kernel_argument(source, kernel, name, expression))
    return source


def _quotient(number: str, divisors: list[str]) -> str:
    if not divisors:
        return number
    return f"{number} // {divisors[0]}" if len(divisors) == 1 else f"{number} // ({' * '.join(divisors)})"
