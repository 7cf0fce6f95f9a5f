"""Finds tiles that are zero beyond the end of a row: ``ct.where(columns < N, tile, 0)``.

A load that pads with zeros beyond N has these zeros already, and needs no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.access_masks import is_extent, limits
from tilewright.playbook.analyses.dataflow import reaching
from tilewright.playbook.analyses.expressions import fitting
from tilewright.playbook.analyses.index_forms import Forms, Scalar, Span
from tilewright.playbook.analyses.tile_shapes import Shapes, rearranged, tile_call
from tilewright.playbook.base import unless_refused
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, elements, number


@dataclass(frozen=True, eq=False)
class ZeroMask:
    """A call of `ct.where` that shows ``tile`` where the ``mask`` holds. ``access`` loaded the tile's elements."""

    call: cst.Call
    mask: Expression
    tile: Expression
    access: cst.Call


def zero_masks(source: Source, function: Function) -> Iterator[ZeroMask]:
    """Yields the masks of a function that put zeros in place of loaded elements."""
    for call in source.calls("where", inside=function):
        if len(call.args) == 3 and _is_zero(source, call.args[2].value):
            mask, tile, _ = (arg.value for arg in call.args)
            if (access := _loaded_by(source, tile)) is not None:
                yield ZeroMask(call, mask, tile, access)


def without_zero_masks(source: Source, kernel: str) -> Source:
    """Returns the source without masks of tiles that were loaded with zeros there."""
    function = source.kernels[kernel]
    shapes = Shapes(source, function)
    needless = [each for each in zero_masks(source, function) if unless_refused(_is_padded, source, each, shapes)]
    return source.changed({each.call: fitting(source, each.call, source.code(each.tile)) for each in needless})


def _is_padded(source: Source, masked: ZeroMask, shapes: Shapes) -> bool:
    """Returns whether a tile load pads with zeros all that the mask hides, so that the mask changes nothing."""
    load, forms = masked.access, Forms(source, masked.call, shapes)
    index, sizes = (elements(argument(load, name, place)) for name, place in (("index", 1), ("shape", 2)))
    padding = argument(load, "padding_mode")
    zeros = padding is not None and dotted(padding).endswith(".ZERO")
    if tile_call(source, load) != "load" or not index or not sizes or not zeros:
        return False
    if shapes.of(masked.tile) != shapes.of(masked.call):
        return False
    block, size = forms.of(index[-1]), forms.of(sizes[-1])
    if not isinstance(block, Scalar) or not isinstance(size, Scalar):
        return False
    found = list(limits(source, masked.mask, forms))
    columns = (isinstance(each, Span) and (each.start, each.size) == (block * size, size) for each, _ in found)
    return all(columns) and all(_ends_at(source, load.args[0].value, len(index) - 1, stop) for _, stop in found)


def _ends_at(source: Source, array: Expression, axis: int, stop: str) -> bool:
    """Returns whether an array, or a view of rows, ends at ``stop`` or before along an axis."""
    if not isinstance(array, cst.Call):
        return is_extent(source, array, axis, stop)
    extents = elements(argument(array, "shape", 1)) if dotted(array.func).endswith(".from_foreign") else None
    if extents is None or axis >= len(extents):
        return False
    extent = extents[axis]
    least = isinstance(extent, cst.Call) and dotted(extent.func) == "min"
    return stop in ([source.code(arg.value) for arg in extent.args] if least else [source.code(extent)])  # type: ignore[attr-defined]


def _is_zero(source: Source, node: Expression) -> bool:
    match node:
        case cst.Call() if tile_call(source, node) == "zeros":
            return True
        case cst.Call() if tile_call(source, node) == "full":
            given = argument(node, "fill_value", 1)
            return given is not None and number(given) == 0
    return number(node) == 0


def _loaded_by(source: Source, tile: Expression) -> cst.Call | None:
    """Returns the load or gather whose elements a tile has, perhaps converted or reshaped."""
    while True:
        if isinstance(tile, cst.Name):
            definition = reaching(source, tile.value, tile)
            value = None if definition is None else definition.value
        elif isinstance(tile, cst.Call) and tile_call(source, tile) in ("load", "gather"):
            return tile
        else:
            value = rearranged(source, tile) if isinstance(tile, cst.Call) else None
        if value is None:
            return None
        tile = value
