"""Finds how many elements an access takes along each axis of its array, and whether its last tile ends with the array.

An access may count its tiles with a block id or a loop's variable. The last tile ends exactly with the array if the
array's extent is a multiple of the tile's extent. This module finds both extents. It does not prove that the count
stops at the last tile: the interpreter checks every address when the version is verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, dependent, names_assigned, names_read, parameters
from tilewright.playbook.analyses.index_forms import Form, Forms, Scalar
from tilewright.playbook.analyses.task_code import passed
from tilewright.playbook.analyses.tile_shapes import Shapes, indices_of, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, elements
from tilewright.task.task import Launch


@dataclass(frozen=True)
class Reach:
    """An access that takes ``size`` elements at a time along ``axis`` of ``array``. The names come from the kernel.

    The array must have at least ``tiles`` tiles: more than 1 if the access uses a constant tile number.
    """

    array: str
    axis: int
    size: str
    tiles: int = 1


def reaches(source: Source, call: cst.Call) -> list[Reach]:
    """Returns the `Reach` of a load, store, gather or scatter along each axis that its tile covers.

    Raises `NotApplicable` if an index does not count tiles.
    """
    array = dotted(call.args[0].value) if call.args else ""
    kernel = source.function_around(call)
    if array not in parameters(kernel):
        raise NotApplicable(f"{array or source.code(call.args[0].value)} is not an array parameter of the kernel")
    if argument(call, "mask") is not None or argument(call, "order") is not None:
        raise NotApplicable(f"{source.code(call)} has a mask or another order of axes")
    shapes = Shapes(source, kernel)
    forms = Forms(source, call, shapes)
    if tile_call(source, call) in ("gather", "scatter"):
        indices = indices_of(call)
        blocks = [_block(forms.of(index, call)) for index in indices]
    else:
        listed, shape = elements(argument(call, "index", 1)), shapes.accessed(call)
        if listed is None or shape is None or len(listed) != len(shape):
            raise NotApplicable(f"the tile of {source.code(call)} is not known")
        indices = listed
        blocks = [(forms.of(index, call), size) for index, size in zip(listed, shape, strict=True)]
    if _are_loaded(source, kernel, indices):
        raise NotApplicable(f"an index of {array} is loaded: it may be -1, for a tile that is left out")
    found = []
    for axis, (number, size) in enumerate(blocks):
        if not isinstance(number, Scalar) or not _counts(number):
            raise NotApplicable(f"the index of axis {axis} of {array} is not a name or a number that counts tiles")
        if names_assigned(kernel.body)[size]:
            raise NotApplicable(f"{size} of {kernel.name.value} is not what the launch passes")
        if size != "1":
            found.append(Reach(array, axis, size, number.terms.get((), 0) + 1))
    return found


def _are_loaded(source: Source, kernel: Function, indices: Sequence[Expression]) -> bool:
    """Returns whether an index depends on what the kernel loads."""
    effects = Effects(source, kernel)
    assigns = filter(effects.loads, source.every(cst.Assign, kernel))
    loaded = (name for assign in assigns for name in names_assigned(assign))
    unknown = dependent(source, kernel, loaded)
    return any(effects.loads(index) or names_read(index) & unknown for index in indices)


def _block(form: Form) -> tuple[Form | None, str]:
    """Returns the number and the size of the block of elements that an index selects. The number is None if the index
    selects no whole block."""
    if isinstance(form, Scalar):
        return form, "1"
    block, rest = form.start.over(form.size)
    return None if form.same or rest.terms else block, form.size.text


def _counts(number: Scalar) -> bool:
    """Returns whether an index is a single name, a single call, or a constant of at least 0.

    Such an index is taken as the number of a tile. Sums and products are not.
    """
    return len(number.terms) < 2 and all(
        (factor == 1 and len(term) == 1) or (factor > 0 and not term) for term, factor in number.terms.items()
    )


def ends_with_array(source: Source, reach: Reach, launch: Launch) -> bool:
    """Returns whether ``reach.array`` consists of whole tiles in ``launch``, and of at least ``reach.tiles`` tiles."""
    given = passed(source, launch)
    extent = given[reach.array].shape[reach.axis]
    size = int(reach.size) if reach.size.isdigit() else given.get(reach.size)
    return isinstance(size, int) and size > 0 and extent % size == 0 and extent >= reach.tiles * size
