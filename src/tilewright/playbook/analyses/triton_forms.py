"""Represents integers, addresses and masks of a Triton kernel as a sum of products, with a stride for each axis.

An integer is a `Scalar`. A name that the kernel assigns gets the number of its assignment, such as ``row·2``. So
expressions with equal text have equal values. `plain` removes the numbers. `Names.holds` tells whether the text of an
expression is valid at a place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilewright.playbook.analyses.index_forms import Scalar

ZERO = Scalar({})
_NUMBERED = re.compile(r"(\w+?)·(\d+)")


@dataclass(frozen=True)
class Lane:
    """One axis of a tile, with ``size`` elements. Element i adds ``step * i`` to the sum of a `Form`.

    wrapped: a pair (start, length) if element i adds ``step * ((start + i) % length)`` instead; otherwise None.
    """

    step: Scalar
    size: Scalar
    wrapped: tuple[Scalar, Scalar] | None = None


@dataclass(frozen=True)
class Form:
    """An integer, an address, or a tile of integers or addresses: ``start`` plus the products that the axes add.

    An axis of one element is None. ``lead`` is the first name of the sum; in an address, this is the pointer.
    """

    start: Scalar
    axes: tuple[Lane | None, ...] = ()
    lead: str = ""


@dataclass(frozen=True)
class Mask:
    """A mask: an element is True if each of its indices is below the index's limit."""

    parts: tuple[tuple[Form, Scalar], ...]

    def mapped(self, change: Callable[[Form], Form | None]) -> Mask | None:
        """Returns the mask with its indices changed; None if one index cannot be changed."""
        changed = [(change(index), limit) for index, limit in self.parts]
        known = tuple((index, limit) for index, limit in changed if index is not None)
        return Mask(known) if len(known) == len(changed) else None


Known: TypeAlias = Form | Mask | None


@dataclass(frozen=True)
class Names:
    """The values of a function's names before a statement, and for each name the number of its last assignment."""

    values: Mapping[str, Known]
    numbers: Mapping[str, int]

    def holds(self, text: str) -> bool:
        """Returns whether the names in ``text`` have the same values here as at the place where the text was read."""
        plain_names = set(re.findall(r"[^\W\d]\w*", _NUMBERED.sub("", text)))
        numbered = all(self.numbers.get(name) == int(at) for name, at in _NUMBERED.findall(text))
        return numbered and not plain_names & set(self.numbers)


def plain(text: str) -> str:
    """Returns ``text`` without the numbers of assignments."""
    return _NUMBERED.sub(r"\1", text)


def mapped(value: Known, change: Callable[[Form], Form | None]) -> Known:
    """Returns a form or mask with its axes changed; None if an axis cannot be changed."""
    if isinstance(value, Mask):
        return value.mapped(change)
    return change(value) if isinstance(value, Form) else None


def expanded(form: Form, new_axes: list[bool]) -> Form | None:
    """Returns the tile with new axes of one element, where ``new_axes`` is True."""
    if new_axes.count(False) != len(form.axes):
        return None
    kept = iter(form.axes)
    return replace(form, axes=tuple(None if new else next(kept) for new in new_axes))


def inserted_axis(form: Form, axis: int) -> Form | None:
    """Returns the tile with a new axis of one element."""
    rank = len(form.axes) + 1
    return expanded(form, [at == axis % rank for at in range(rank)]) if -rank <= axis < rank else None


def total_of(left: Form, right: Form) -> Form | None:
    """Returns the sum of two forms; None if both have several elements along the same axis."""
    lead = left.lead or right.lead
    if not (left.axes and right.axes):
        return Form(left.start + right.start, left.axes or right.axes, lead)
    if len(left.axes) != len(right.axes) or any(a and b for a, b in zip(left.axes, right.axes, strict=True)):
        return None
    axes = tuple(a or b for a, b in zip(left.axes, right.axes, strict=True))
    return Form(left.start + right.start, axes, lead)
