"""Views a flat array as rows, so that a part of a row can be accessed as a tile.

``x`` holds rows of N elements. ``ct.gather(x, row * N + arange(TILE))`` then reads from row ``row`` of the array

    ct.Array.from_foreign(x.foreign_pointer, (x.shape[0] // N, N), (N, 1))

The compiler makes the same code of an access to this view as of an access to a matrix. In the flat array, the next row
follows the end of a row. In the view, padding does. Kernels mask these elements: a gather gets zeros by `ct.where`, and
a scatter goes to an index beyond the array. The view ends where they do, and needs no such mask. It is made only if N
is a constant, because TMA needs to know that N is a multiple of 16 bytes. It is right for whole rows whose elements
are consecutive in memory, and without masks for tiles that end with the row. These are the conditions of the access.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from tilewright.playbook.analyses.access_masks import is_extent, limits
from tilewright.playbook.analyses.constants import constant_parameters
from tilewright.playbook.analyses.dataflow import names_assigned, reaching
from tilewright.playbook.analyses.extents import extent_of
from tilewright.playbook.analyses.index_forms import ONE, Forms, Scalar, Span
from tilewright.playbook.analyses.tile_shapes import Shapes, tile_call
from tilewright.playbook.analyses.zero_masks import zero_masks
from tilewright.playbook.base import NotApplicable, unless_refused
from tilewright.source.syntax import Expression, Source, argument, dotted


@dataclass(frozen=True)
class RowView:
    """A tile of ``size`` elements of one row: the view ``array``, and the tile's index in it: ``row`` and ``block``.

    columns: the columns that the tile covers.
    conditions: tests of the launches for which the view has the elements of the array; none that a branch has tested.
    """

    array: str
    row: str
    block: str
    size: str
    columns: Span
    conditions: tuple[str, ...]


def row_view(source: Source, call: cst.Call, shapes: Shapes) -> RowView:
    """Returns the view through which a gather or scatter of a flat array becomes an access to a tile.

    Raises `NotApplicable` if the index is no part of a row, or if the rows are not known.
    """
    array, kernel = call.args[0].value, source.function_of(call)
    constants = constant_parameters(source, source.functions[kernel], "int")
    index, masks = _unmasked(source, call)
    forms = Forms(source, call, shapes, steps=True)
    form = forms.of(index)
    if not isinstance(form, Span) or form.same or not _is_constant(form.step.text, constants):
        raise NotApplicable(f"{source.code(index)} is no part of a row")
    if unless_refused(extent_of, source, kernel, dotted(array), 0) is None or not source.spelled("Array"):
        raise NotApplicable(f"the extent of {source.code(array)} is not known")
    block, start = form.start.over(form.step * form.size)
    row, length = _row(start, constants)
    columns = replace(form, start=block * form.size, step=ONE)
    width = length if form.step == ONE else f"{length} // {form.step.text}"
    stops = set[str]()
    for limited, stop in (each for mask in masks for each in limits(source, mask, forms)):
        if limited == columns:
            stops.add(stop)
        elif limited != form or not is_extent(source, array, 0, stop):
            raise NotApplicable(f"a mask of {source.code(call)} limits another index")
    for mask in (each.mask for each in zero_masks(source, source.functions[kernel]) if each.access is call):
        stops.update(unless_refused(_stops, source, mask, forms, columns) or ())
    if stops - {width}:
        width = f"min({', '.join((*sorted(stops), width))})"
    name = source.code(array)
    needed = [f"{name}.strides[0] == 1", f"{name}.shape[0] % {length} == 0"]
    if not stops:  # the flat array has elements of the next row where the view has none
        needed.append(f"{width} % {form.size.text} == 0")
    shape, strides = f"({name}.shape[0] // {length}, {width})", f"({length}, {form.step.text})"
    view = f"{source.spelled('Array')}.from_foreign({name}.foreign_pointer, {shape}, {strides})"
    return RowView(view, row, block.text, form.size.text, columns, _untested(source, call, kernel, needed))


def _untested(source: Source, call: cst.Call, kernel: str, conditions: Sequence[str]) -> tuple[str, ...]:
    """Returns the conditions that no branch has tested.

    Raises `NotApplicable` in the branch for other launches, and if a test cannot be made at the kernel's beginning.
    """
    array, function = source.code(call.args[0].value), source.functions[kernel]
    if array in names_assigned(function.body) or source.every(cst.Return, function):
        raise NotApplicable(f"{array} cannot be tested at the beginning of {kernel}")
    tested = set[str]()
    inner: cst.CSTNode = call
    for above in source.parents(call):
        if isinstance(above, cst.If):
            tests = {*source.code(above.test).split(" and ")}.intersection(conditions)
            if tests and inner is not above.body:
                raise NotApplicable(f"this branch is for launches that pass {array} in another form")
            tested |= tests
        inner = above
    return tuple(condition for condition in conditions if condition not in tested)


def _stops(source: Source, mask: Expression, forms: Forms, columns: Span) -> list[str]:
    """Returns where a mask ends the columns."""
    return [stop for limited, stop in limits(source, mask, forms) if limited == columns]


def _is_constant(text: str, constants: Collection[str]) -> bool:
    return text.isdigit() or text in constants


def _row(start: Scalar, constants: Collection[str]) -> tuple[str, str]:
    """Returns the number of a row and the length of the rows from the row's first element: ``row * N``."""
    if len(start.terms) == 1:
        [(names, factor)] = start.terms.items()
        lengths = [name for name in names if name in constants]
        numbers = [name for name in names if name not in constants]
        if numbers and factor == 1 and len(lengths) == 1:
            return " * ".join(numbers), lengths[0]
        if numbers and factor > 1 and not lengths:
            return " * ".join(numbers), str(factor)
    raise NotApplicable(f"{start.text} is not the first element of a row of constant length")


def _unmasked(source: Source, call: cst.Call) -> tuple[Expression, list[Expression]]:
    """Returns the index of an access, and the masks of its elements.

    ``ct.where(mask, index, beyond)`` is a masked index if ``beyond`` is the array's extent.
    """
    index, given = call.args[1].value, argument(call, "mask")
    masks = [] if given is None else [given]
    definition = reaching(source, index.value, call) if isinstance(index, cst.Name) else None
    chosen = index if definition is None else definition.value
    if isinstance(chosen, cst.Call) and tile_call(source, chosen) == "where" and len(chosen.args) == 3:
        mask, inside, beyond = (arg.value for arg in chosen.args)
        if isinstance(beyond, cst.Call) and tile_call(source, beyond) == "full":
            beyond = argument(beyond, "fill_value", 1) or beyond
        if is_extent(source, call.args[0].value, 0, source.code(beyond)):
            return inside, [*masks, mask]
    return index, masks
