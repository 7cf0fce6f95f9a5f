"""Reads the mask of a gather or scatter: ``index < limit``, or several such joined by ``&``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.index_forms import Form, Forms, Scalar
from tilewright.playbook.analyses.reaching import reaching
from tilewright.playbook.analyses.task_code import argument_of, shape_of
from tilewright.playbook.analyses.tile_shapes import Shapes
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Source, dotted


@dataclass(frozen=True)
class IndexLimit:
    """``index < stop``."""

    index: Form
    stop: str

    def is_extent(self, source: Source, array: cst.BaseExpression, axis: int) -> bool:
        """Whether ``stop`` is the array's extent, so that the mask does no more than the end of the array."""
        name = dotted(array)
        if self.stop.replace(" ", "") == f"{name}.shape[{axis}]":
            return True
        return bool(name) and self.stop == _extent(source, array, axis)


def limits_of(source: Source, mask: cst.BaseExpression, at: cst.CSTNode, shapes: Shapes) -> list[IndexLimit]:
    """The limits that a mask is made of. Raises `NotApplicable` for any other mask."""
    forms = Forms(source, at, shapes)
    found = []
    for one, where in _parts(source, mask, mask):
        comparison = one.comparisons[0] if isinstance(one, cst.Comparison) and len(one.comparisons) == 1 else None
        if comparison is None or not isinstance(one, cst.Comparison):
            raise NotApplicable(f"the mask {source.code(mask)} is no limit on an index")
        small, large = one.left, comparison.comparator
        if isinstance(comparison.operator, cst.GreaterThan):
            small, large = large, small
        elif not isinstance(comparison.operator, cst.LessThan):
            raise NotApplicable(f"the mask {source.code(mask)} is no limit on an index")
        stop = forms.of(large, where)
        if not isinstance(stop, Scalar):
            raise NotApplicable(f"the mask {source.code(mask)} has no scalar limit")
        found.append(IndexLimit(forms.of(small, where), stop.text))
    return found


def _parts(
    source: Source, mask: cst.BaseExpression, where: cst.CSTNode
) -> Iterator[tuple[cst.BaseExpression, cst.CSTNode]]:
    match mask:
        case cst.BinaryOperation(operator=cst.BitAnd()):
            yield from _parts(source, mask.left, where)
            yield from _parts(source, mask.right, where)
        case cst.Name():
            definition = reaching(source, mask.value, where)
            if definition is None or definition.value is None:
                raise NotApplicable(f"the mask {mask.value} is not plain where it is used")
            yield from _parts(source, definition.value, definition.node)
        case _:
            yield mask, where


def _extent(source: Source, array: cst.BaseExpression, axis: int) -> str | None:
    """The parameter of the kernel that is the extent of ``array``, by the names of the task's dimensions."""
    kernel = source.function_of(array)
    try:
        given = argument_of(source, kernel, dotted(array))
        shape = None if given is None else shape_of(source, dotted(given))
        dimension = shape[axis] if shape is not None and axis < len(shape) else None
        for one in source.functions[kernel].params.params if dimension is not None else ():
            passed = argument_of(source, kernel, one.name.value)
            if passed is not None and dotted(passed) == dimension:
                return one.name.value
    except NotApplicable:
        return None
    return None
