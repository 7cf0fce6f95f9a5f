"""Reads the mask of an access: ``index < limit``, or several of these joined by ``&``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tilewright.playbook.analyses.dataflow import reaching
from tilewright.playbook.analyses.extents import extent_of
from tilewright.playbook.analyses.index_forms import Form, Forms, Scalar
from tilewright.playbook.analyses.task_code import argument_of
from tilewright.playbook.base import NotApplicable, unless_refused
from tilewright.source.syntax import Expression, Source, dotted


def limits(source: Source, mask: Expression, forms: Forms) -> Iterator[tuple[Form, str]]:
    """Yields each index that a mask limits, with its limit. Raises `NotApplicable` for any other mask."""
    for part, where in _parts(source, mask, mask):
        match part:
            case cst.Comparison(left=index, comparisons=[cst.ComparisonTarget(cst.LessThan(), comparator=limit)]):
                pass
            case cst.Comparison(left=limit, comparisons=[cst.ComparisonTarget(cst.GreaterThan(), comparator=index)]):
                pass
            case _:
                raise NotApplicable(f"the mask {source.code(mask)} does more than limit an index")
        stop = forms.of(limit, where)
        if not isinstance(stop, Scalar):
            raise NotApplicable(f"the mask {source.code(mask)} has no scalar limit")
        yield forms.of(index, where), stop.text


def _parts(source: Source, mask: Expression, where: cst.CSTNode) -> Iterator[tuple[Expression, cst.CSTNode]]:
    """Yields the parts of a mask that ``&`` joins, each with the node at which its names are read."""
    match mask:
        case cst.BinaryOperation(operator=cst.BitAnd()):
            yield from _parts(source, mask.left, where)
            yield from _parts(source, mask.right, where)
        case cst.Name():
            definition = reaching(source, mask.value, where)
            if definition is None or definition.value is None:
                raise NotApplicable(f"the mask {mask.value} may have several values here")
            yield from _parts(source, definition.value, definition.node)
        case _:
            yield mask, where


def is_extent(source: Source, array: Expression, axis: int, text: str) -> bool:
    """Returns whether ``text``, an expression of a kernel, is the extent of ``array``, one of its parameters, along an
    axis: ``x.shape[0]``, or a parameter for which the launch passes the extent."""
    if "".join(text.split()) == f"{dotted(array)}.shape[{axis}]":
        return True
    kernel = source.function_of(array)
    extent = unless_refused(extent_of, source, kernel, dotted(array), axis)
    given = unless_refused(argument_of, source, kernel, text) if extent else None
    return given is not None and "".join(source.code(given).split()) == "".join((extent or "").split())
