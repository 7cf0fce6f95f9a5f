"""Bounds the indices of a gather or scatter by arithmetic on what the launch passes.

    rows = ct.bid(0) * R + ct.arange(R)        index of x  <=  ((blocks - 1) * R + (R - 1)) * stride + (N - 1)
    mask = ct.arange(N) < n                    mask is always true if  N - 1 < n
    i = ct.where(mask, rows * stride + ct.arange(N), past_the_end)

The access stays in its array if the bound is below the array's extent and each mask is always true. These conditions
are written in the launch's own names, so that the launch decides them for each shape, or are computed for one launch.

All numbers must be at least 0. Then sums and products grow with each operand, and no intermediate number exceeds the
bound, except below ``//`` and ``%``, which are read only for numbers that fit into 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import range_of, reaching
from tilewright.playbook.analyses.expressions import bare, text_of
from tilewright.playbook.analyses.task_code import argument_of, extent_of, grid_axes, passed
from tilewright.playbook.analyses.tile_shapes import indices_of, new_axes, rearranged, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Source, argument, dotted, number
from tilewright.task.task import Launch

MOST = 1 << 31
_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide)
"""Operators that bind more closely than a comparison, and at least as closely as a sum."""


@dataclass(frozen=True)
class Text:
    """Arithmetic as text of the launch."""

    text: str

    def __add__(self, other: Number) -> Text:
        return Text(f"{self.text} + {_factor(other)}")

    def __radd__(self, other: int) -> Text:
        return Text(f"{other} + {_factor(self)}")

    def __sub__(self, other: int) -> Text:
        return Text(f"{self.text} - {other}")

    def __mul__(self, other: Number) -> Text:
        return Text(f"{_factor(self)} * {_factor(other)}")

    def __rmul__(self, other: int) -> Text:
        return Text(f"{other} * {_factor(self)}")

    def __floordiv__(self, other: Number) -> Text:
        return Text(f"{_factor(self)} // {_factor(other)}")

    def __rfloordiv__(self, other: int) -> Text:
        return Text(f"{other} // {_factor(self)}")


Number: TypeAlias = "int | Text"


def _factor(value: Number) -> str:
    text = str(value) if isinstance(value, int) else value.text
    return text if text.replace(".", "").isidentifier() or text.isdigit() else f"({text})"


@dataclass(frozen=True)
class Below:
    """The condition that ``value`` is below ``limit``."""

    value: Number
    limit: Number

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None if only the launch can say."""
        return self.value < self.limit if isinstance(self.value, int) and isinstance(self.limit, int) else None

    @property
    def negated(self) -> str:
        value, limit = (each.text if isinstance(each, Text) else str(each) for each in (self.value, self.limit))
        return f"{value} >= {limit}"


Known: TypeAlias = Callable[[str], Number]


@dataclass(frozen=True)
class LaunchNumbers:
    """The numbers of a launch.

    parameter: the number that is passed for a parameter of the kernel.
    extent: the extent of an axis of an array parameter.
    blocks: the blocks along an axis of the grid.
    """

    parameter: Known
    extent: Callable[[str, int], Number]
    blocks: Callable[[int], Number]


def of_launch(source: Source, launch: Launch) -> LaunchNumbers:
    """Returns the numbers of one launch."""
    given = passed(source, launch)

    def parameter(name: str) -> Number:
        value = given.get(name)
        if type(value) is not int or not 0 <= value < MOST:
            raise NotApplicable(f"{name} is no integer of at least 0")
        return value

    def extent(array: str, axis: int) -> Number:
        extents: Any = getattr(given.get(array), "shape", ())
        if axis >= len(extents) or extents[axis] >= MOST:
            raise NotApplicable(f"{array} has no axis {axis} of less than 2**31 elements")
        return int(extents[axis])

    return LaunchNumbers(parameter, extent, lambda axis: launch.grid[axis] if axis < len(launch.grid) else 1)


def of_launch_code(source: Source, kernel: str) -> LaunchNumbers:
    """Returns the numbers as text of the task's launch, which is in ``source``."""
    axes = grid_axes(source)[0]

    def parameter(name: str) -> Number:
        given = argument_of(source, kernel, name)
        if given is None:
            raise NotApplicable(f"the launch does not say what {name} is")
        return _read(source, given)

    def extent(array: str, axis: int) -> Number:
        declared = extent_of(source, kernel, array, axis)
        if declared is not None:
            return _read(source, cst.parse_expression(declared))
        given = argument_of(source, kernel, array)
        if given is None:
            raise NotApplicable(f"the launch does not say which array {array} is")
        return Text(f"{text_of(source, given)}.shape[{axis}]")

    return LaunchNumbers(parameter, extent, lambda axis: _read(source, axes[axis]) if axis < len(axes) else 1)


def _read(source: Source, node: Expression) -> Number:
    known = number(node)
    if isinstance(known, int):
        return known
    plain = isinstance(node, cst.UnaryOperation) or (
        isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _ARITHMETIC)
    )
    return Text(source.code(bare(node)) if plain else text_of(source, node))


@dataclass(frozen=True)
class Inside:
    """When a gather or scatter stays in its array: if all ``conditions`` hold.

    chosen: the indices ``ct.where(mask, index, …)`` whose masks are true everywhere then, each with its ``index``.
    """

    conditions: tuple[Below, ...]
    chosen: tuple[tuple[cst.Call, Expression], ...]


def stays_inside(source: Source, call: cst.Call, numbers: LaunchNumbers) -> Inside:
    """Returns when a gather or scatter stays in its array. Raises `NotApplicable` if an index is not understood."""
    if tile_call(source, call) not in ("gather", "scatter"):
        raise NotApplicable(f"{source.code(call)} is no gather or scatter")
    bounds = _Bounds(source, numbers)
    array = dotted(call.args[0].value)
    for axis, index in enumerate(indices_of(call)):
        bounds.conditions.append(Below(bounds.largest(index), numbers.extent(array, axis)))
    if any(each.holds is False for each in bounds.conditions):
        raise NotApplicable(f"{source.code(call)} goes beyond its array for all shapes")
    return Inside(tuple(dict.fromkeys(each for each in bounds.conditions if not each.holds)), tuple(bounds.chosen))


@dataclass
class _Bounds:
    """Bounds expressions of one access. ``conditions``, ``chosen``: as in `Inside`."""

    source: Source
    numbers: LaunchNumbers
    conditions: list[Below] = field(default_factory=list)
    chosen: list[tuple[cst.Call, Expression]] = field(default_factory=list)

    def largest(self, node: Expression) -> Number:
        """Returns the largest value of an expression whose values are all at least 0. Raises `NotApplicable`."""
        match node:
            case cst.Integer():
                return node.evaluated_value
            case cst.Name():
                return self._of_name(node)
            case cst.BinaryOperation():
                return self._of_operation(node)
            case cst.Subscript(value=cst.Attribute(attr=cst.Name(value="shape"), value=array)):
                return self._extent(node, dotted(array))
            case cst.Subscript() if new_axes(node) is not None:
                return self.largest(node.value)
            case cst.Call():
                return self._of_call(node)
        raise NotApplicable(f"{self.source.code(node)} has no bound that the launch knows")

    def _of_name(self, node: cst.Name) -> Number:
        found = reaching(self.source, node.value, node)
        if found is None:
            raise NotApplicable(f"{node.value} may have several values here")
        if found.value is not None:
            return self.largest(found.value)
        if isinstance(found.node, cst.FunctionDef):
            return self.numbers.parameter(node.value)
        match range_of(found.node):
            case [stop] | [cst.Integer(), stop]:
                return self.largest(stop) - 1
            case [cst.Call() as start, stop, cst.Call() as step] if self._are_of_blocks(start, step):
                return self.largest(stop) - 1
        raise NotApplicable(f"{node.value} has no bound that the launch knows")

    def _are_of_blocks(self, start: cst.Call, step: cst.Call) -> bool:
        """Returns whether a loop goes from a block's number in steps of the number of blocks, as persistent ones do."""
        return tile_call(self.source, start) == "bid" and tile_call(self.source, step) == "num_blocks"

    def _of_operation(self, node: cst.BinaryOperation) -> Number:
        match node.operator:
            case cst.Add():
                return self.largest(node.left) + self.largest(node.right)
            case cst.Multiply():
                return self.largest(node.left) * self.largest(node.right)
            case cst.FloorDivide() | cst.Modulo():
                before, divisor = self.largest(node.left), self._only(node.right)
                self.conditions += [Below(before, MOST), Below(0, divisor)]
                return before // divisor if isinstance(node.operator, cst.FloorDivide) else divisor - 1
        raise NotApplicable(f"{self.source.code(node)} has no bound that the launch knows")

    def _of_call(self, node: cst.Call) -> Number:
        name, operands = tile_call(self.source, node), [arg.value for arg in node.args if arg.keyword is None]
        if (inside := rearranged(self.source, node)) is not None:
            return self.largest(inside)
        if name == "bid" and operands and isinstance(axis := number(operands[0]), int):
            return self.numbers.blocks(axis) - 1
        if name == "arange" and operands and argument(node, "start") is None and argument(node, "step") is None:
            return self.largest(operands[0]) - 1
        if name == "cdiv" and len(operands) == 2:
            divisor = self._only(operands[1])
            self.conditions.append(Below(0, divisor))
            return (self.largest(operands[0]) + (divisor - 1)) // divisor
        if name == "where" and len(operands) == 3:
            self.conditions += self._always(operands[0])
            self.chosen.append((node, operands[1]))
            return self.largest(operands[1])
        raise NotApplicable(f"{self.source.code(node)} has no bound that the launch knows")

    def _always(self, mask: Expression) -> Iterator[Below]:
        """Yields the conditions under which a mask is true everywhere."""
        match mask:
            case cst.Name():
                found = reaching(self.source, mask.value, mask)
                if found is not None and found.value is not None:
                    yield from self._always(found.value)
                    return
            case cst.BinaryOperation(operator=cst.BitAnd()) | cst.BooleanOperation(operator=cst.And()):
                yield from (*self._always(mask.left), *self._always(mask.right))
                return
            case cst.Comparison(comparisons=[cst.ComparisonTarget(operator=cst.LessThan(), comparator=limit)]):
                yield Below(self.largest(mask.left), self._only(limit))
                return
        raise NotApplicable(f"{self.source.code(mask)} is no mask that the launch can decide")

    def _only(self, node: Expression) -> Number:
        """Returns the value of an expression that is the same in all blocks: a number, a parameter or an extent."""
        match node:
            case cst.Integer() | cst.Subscript(value=cst.Attribute(attr=cst.Name(value="shape"))):
                return self.largest(node)
            case cst.Name():
                found = reaching(self.source, node.value, node)
                if found is not None and found.value is not None:
                    return self._only(found.value)
                if found is not None and isinstance(found.node, cst.FunctionDef):
                    return self.numbers.parameter(node.value)
        raise NotApplicable(f"{self.source.code(node)} is not the same in all blocks")

    def _extent(self, node: cst.Subscript, array: str) -> Number:
        match node.slice:
            case [cst.SubscriptElement(slice=cst.Index(value=cst.Integer() as axis))]:
                return self.numbers.extent(array, axis.evaluated_value)
        raise NotApplicable(f"{self.source.code(node)} is no extent of an array")
