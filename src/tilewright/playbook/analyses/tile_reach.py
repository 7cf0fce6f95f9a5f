"""Finds how far accesses reach along the axes of their arrays, and whether a launch lets them go beyond.

An access that counts its tiles with a block id or a loop's variable ends with the array where the extent is a multiple
of the tile's. This module finds these extents and tiles. That the counts go no further is left to the interpreter,
which follows every address when the version is verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import parameters
from tilewright.playbook.analyses.index_forms import Forms, Scalar, Span
from tilewright.playbook.analyses.tile_shapes import Shapes, indices_of, tile_call
from tilewright.playbook.base import KernelFacts, NotApplicable
from tilewright.records import Workload
from tilewright.source.syntax import Source, argument, dotted, elements


@dataclass(frozen=True)
class Reach:
    """An access takes ``size`` elements at a time along ``axis`` of ``array``, by the kernel's own names."""

    array: str
    axis: int
    size: str
    tiles: int = 1
    """How many tiles the array must have, because the access takes one with a fixed number, counted from 0."""


def reaches(source: Source, call: cst.Call) -> list[Reach]:
    """The reaches of one load, store, gather or scatter. Raises `NotApplicable` for indices that are not plain."""
    array = dotted(call.args[0].value) if call.args else ""
    kernel = source.functions[source.function_of(call)]
    if array not in parameters(kernel):
        raise NotApplicable(f"{array or source.code(call.args[0].value)} is no array that the kernel is given")
    if argument(call, "mask") is not None or argument(call, "order") is not None:
        raise NotApplicable(f"{source.code(call)} has a mask or another order of axes")
    shapes = Shapes(source, kernel)
    forms = Forms(source, call, shapes)
    if tile_call(source, call) in ("gather", "scatter"):
        found = [_of_index(array, axis, forms.of(one, call)) for axis, one in enumerate(indices_of(call))]
    else:
        found = _of_tile(source, call, array, forms, shapes)
    return [one for one in found if one is not None]


def _of_index(array: str, axis: int, form: object) -> Reach | None:
    if isinstance(form, Scalar) and _counts(form):
        return None
    if isinstance(form, Span) and not form.same:
        block, rest = form.start.over(form.size)
        if not rest.terms and _counts(block):
            return Reach(array, axis, form.size.text, block.terms.get((), 0) + 1)
    raise NotApplicable(f"what the indices of axis {axis} of {array} count is not plain")


def _of_tile(source: Source, call: cst.Call, array: str, forms: Forms, shapes: Shapes) -> list[Reach | None]:
    index = elements(argument(call, "index", 1))
    tile = argument(call, "tile", 2)
    shape = shapes.of(tile) if tile_call(source, call) == "store" and tile is not None else shapes.of(call)
    if index is None or shape is None or len(index) != len(shape):
        raise NotApplicable(f"the tile of {source.code(call)} is not known")
    found: list[Reach | None] = []
    for axis, (one, size) in enumerate(zip(index, shape, strict=True)):
        form = forms.of(one, call)
        if not isinstance(form, Scalar) or not _counts(form):
            raise NotApplicable(f"what the indices of axis {axis} of {array} count is not plain")
        found.append(None if size == "1" else Reach(array, axis, size, form.terms.get((), 0) + 1))
    return found


def _counts(number: Scalar) -> bool:
    """Whether a tile's number is a name, a call or a constant, and not computed from several."""
    return len(number.terms) < 2 and all(
        (factor == 1 and len(term) == 1) or (factor > 0 and not term) for term, factor in number.terms.items()
    )


def ends_with_array(source: Source, kernel: str, reach: Reach, facts: KernelFacts, workload: Workload) -> bool:
    """Whether the array has only whole tiles in one workload, and as many as the access needs."""
    given = dict(zip(parameters(source.functions[kernel]), facts.launch(workload).args, strict=False))
    extent = given[reach.array].shape[reach.axis]
    size = int(reach.size) if reach.size.isdigit() else given.get(reach.size)
    return isinstance(size, int) and size > 0 and extent % size == 0 and extent >= reach.tiles * size
