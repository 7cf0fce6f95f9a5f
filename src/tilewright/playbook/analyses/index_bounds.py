"""Bounds the indices of an access by arithmetic on what the launch passes.

    rows = ct.bid(0) * R + ct.arange(R)        index of x  <=  ((blocks - 1) * R + (R - 1)) * stride + (N - 1)
    mask = ct.arange(N) < n                    mask is always true if  N - 1 < n
    i = ct.where(mask, rows * stride + ct.arange(N), past_the_end)

A tile load or store counts tiles, so its last tile ends where the bound does. The access stays in its array if the
bound is below the array's extent and each mask is always true. These conditions are written in the launch's own names,
so that the launch decides them for each shape, or are computed for one launch.

All numbers must be at least 0. Then sums and products grow with each operand, and no intermediate number exceeds the
bound, except below ``//`` and ``%``, which are read only for numbers that fit into 32 bits.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import libcst as cst

from tilewright.playbook.analyses.constant_branches import is_conditional
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, parameters, range_of, reaching
from tilewright.playbook.analyses.expressions import bare, text_of
from tilewright.playbook.analyses.extents import extent_of
from tilewright.playbook.analyses.launch_expressions import given_at_launch, reassigned
from tilewright.playbook.analyses.task_code import grid_axes, launch_of, only_call, passed
from tilewright.playbook.analyses.tile_shapes import Shapes, indices_of, new_axes, rearranged, same_elements, tile_call
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Expression, Function, Source, argument, dotted, number
from tilewright.task.task import Launch

MOST = 1 << 31


class Unbounded(NotApplicable):
    """Only the kernel knows how large an index is: it is loaded, or counted by a loop that is not understood."""


_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.FloorDivide)
"""Operators that bind more closely than a comparison, and at least as closely as a sum."""


@dataclass(frozen=True)
class Text:
    """Arithmetic as text of the launch. ``counts``: whether it is known to be at least 0."""

    text: str
    counts: bool = field(default=False, compare=False)

    def __add__(self, other: Number) -> Text:
        return self if other == 0 else Text(f"{self.text} + {_factor(other)}")

    def __radd__(self, other: int) -> Text:
        return self if other == 0 else Text(f"{other} + {_factor(self)}")

    def __sub__(self, other: int) -> Text:
        return Text(f"{self.text} - {other}")

    def __mul__(self, other: Number) -> Text:
        return self if other == 1 else Text(f"{_factor(self)} * {_factor(other)}")

    def __rmul__(self, other: int) -> Text:
        return self if other == 1 else Text(f"{other} * {_factor(self)}")

    def __floordiv__(self, other: Number) -> Text:
        return Text(f"{_factor(self)} // {_factor(other)}")

    def __rfloordiv__(self, other: int) -> Text:
        return Text(f"{other} // {_factor(self)}")


Number: TypeAlias = "int | Text"


def _factor(value: Number) -> str:
    text = str(value) if isinstance(value, int) else value.text
    return text if re.fullmatch(r"[\w.\[\]]+", text) else f"({text})"


@dataclass(frozen=True)
class Below:
    """The condition that ``value`` is below ``limit``."""

    value: Number
    limit: Number

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None if only the launch can say."""
        if isinstance(self.value, int) and isinstance(self.limit, int):
            return self.value < self.limit
        counts = isinstance(self.limit, Text) and self.limit.counts and self.value == -1
        return True if counts or self.value == self.limit - 1 else None

    @property
    def negated(self) -> str:
        value, limit = (each.text if isinstance(each, Text) else str(each) for each in (self.value, self.limit))
        if self.value == -1:
            return f"{limit} < 0"
        if (size := _whole_tiles(value, _factor(self.limit))) is not None:
            return f"{_factor(self.limit)} % {size} != 0"
        return f"{value} >= {limit}"


def _whole_tiles(last: str, extent: str) -> str | None:
    """Returns the size of the tiles if ``last`` is the last element of the tiles that cover an extent. None if not."""
    match ast.parse(last, mode="eval").body:
        case ast.BinOp(op=ast.Add(), right=ast.BinOp(left=tile, op=ast.Sub(), right=ast.Constant(value=1)) as end):
            size = _factor(Text(ast.unparse(tile)))
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=int(before)) as end):
            size = str(before + 1)
        case _:
            return None
    covers = f"-(-{extent} // {size})", f"({extent} + ({size} - 1)) // {size}", f"({extent} + {size} - 1) // {size}"
    forms = (form for tiles in covers for form in (f"({tiles} - 1) * {size}", f"{size} * ({tiles} - 1)"))
    stepped = f"({extent} - 1) // {size} * {size}"  # of a loop over range(0, extent, size)
    return size if any(_same(last, f"{form} + ({ast.unparse(end)})") for form in (*forms, stepped)) else None


def _same(first: str, second: str) -> bool:
    """Returns whether two texts are the same expression, apart from spaces and parentheses."""
    return ast.dump(ast.parse(first, mode="eval")) == ast.dump(ast.parse(second, mode="eval"))


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
    (axes, named), launch = grid_axes(source), launch_of(source)
    changed = reassigned(launch)

    def given(name: str) -> Expression:
        found = given_at_launch(source, kernel, name)
        if found is None:
            raise NotApplicable(f"the launch does not say what {name} is")
        return found

    def extent(array: str, axis: int) -> Number:
        declared = extent_of(source, kernel, array, axis)
        if declared is not None:
            return _read(source, cst.parse_expression(declared))
        return Text(f"{text_of(source, given(array))}.shape[{axis}]", counts=True)

    def blocks(axis: int) -> Number:
        if axis >= len(axes):
            return 1
        stale = named and names_read(axes[axis]) & changed
        return Text(f"{named}[{axis}]") if stale else _read(source, axes[axis])

    counts = _declared(source) & set(parameters(launch.function)) - changed
    return LaunchNumbers(lambda name: _read(source, given(name), counts), extent, blocks)


def _declared(source: Source) -> set[str]:
    """Returns the names of tensors and of the dimensions in their shapes: all others may be negative."""
    tensors = argument(only_call(source, "Task"), "tensors", 1)
    strings = source.every(cst.SimpleString, tensors) if tensors is not None else ()
    return {str(each.evaluated_value) for each in strings}


def _read(source: Source, node: Expression, sizes: Collection[str] = ()) -> Number:
    """Reads an expression of the launch. ``sizes``: the names of tensors and of their dimensions there."""
    known = number(node)
    if isinstance(known, int):
        return known
    plain = isinstance(node, cst.UnaryOperation) or (
        isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _ARITHMETIC)
    )
    text = source.code(bare(node)) if plain else text_of(source, node)
    return Text(text, names_read(node) <= set(sizes) and re.fullmatch(r"[\w.+*/() ]+", text) is not None)


@dataclass(frozen=True)
class Inside:
    """When a gather or scatter stays in its array: if all ``conditions`` hold.

    chosen: the indices ``ct.where(mask, index, …)`` whose masks are true everywhere then, each with its ``index``.
    """

    conditions: tuple[Below, ...]
    chosen: tuple[tuple[cst.Call, Expression], ...]


def stays_inside(source: Source, call: cst.Call, numbers: LaunchNumbers) -> Inside:
    """Returns when an access stays in its array.

    Raises `Unbounded` if only the kernel knows an index, and `NotApplicable` if the access is not understood.
    """
    kernel, array = source.function_around(call), call.args[0].value
    around = next(above for above in source.parents(call) if isinstance(above, (cst.FunctionDef, cst.Lambda)))
    defined = reaching(source, array.value, call) if isinstance(array, cst.Name) else None
    if around is not kernel or defined is None or defined.node is not kernel:
        raise NotApplicable(f"{source.code(array)} is not an array parameter of the kernel")
    bounds = _Bounds(source, kernel, numbers)
    for axis, last in enumerate(bounds.last_elements(call)):
        bounds.conditions.append(Below(last, numbers.extent(dotted(array), axis)))
    if any(each.holds is False for each in bounds.conditions):
        raise NotApplicable(f"{source.code(call)} goes beyond its array for all shapes")
    return Inside(tuple(dict.fromkeys(bounds.open(is_conditional(source, call)))), tuple(bounds.chosen))


@dataclass
class _Bounds:
    """Bounds expressions of one access. ``conditions``, ``chosen``: as in `Inside`. ``sizes``: the extents of tiles,
    which are at least 1."""

    source: Source
    kernel: Function
    numbers: LaunchNumbers
    conditions: list[Below] = field(default_factory=list)
    chosen: list[tuple[cst.Call, Expression]] = field(default_factory=list)
    sizes: list[Number] = field(default_factory=list)

    def open(self, conditional: bool) -> Iterator[Below]:
        """Yields the conditions that the launch must decide. ``conditional``: whether a branch may leave the access
        out. Then a divisor must be tested, though it is the extent of a tile."""
        divisors = {each.limit for each in self.conditions if each.value == 0}
        known = {Below(-1, each) for each in (*divisors, *self.sizes)}
        known |= set() if conditional else {Below(0, each) for each in self.sizes}
        yield from (each for each in self.conditions if not each.holds and each not in known)

    def last_elements(self, call: cst.Call) -> Iterator[Number]:
        """Yields the last element that an access takes along each axis of its array."""
        indices = indices_of(call)
        if tile_call(self.source, call) in ("gather", "scatter"):
            yield from map(self.largest, indices)
            return
        shape = Shapes(self.source, self.kernel).accessed(call)
        if shape is None or len(shape) != len(indices) or argument(call, "order") is not None:
            raise NotApplicable(f"the tile of {self.source.code(call)} is not known")
        for index, written in zip(indices, shape, strict=True):
            if names_assigned(self.kernel.body)[written]:
                raise NotApplicable(f"{written} is not what the launch passes")
            size = int(written) if written.isdigit() else self._parameter(written)
            self.sizes.append(size)
            before = self.largest(index) * size
            yield size - 1 if before == 0 else before + (size - 1)

    def largest(self, node: Expression) -> Number:
        """Returns the largest value of an expression whose values are all at least 0. Raises `Unbounded`."""
        match node:
            case cst.Integer():
                return node.evaluated_value
            case cst.Name():
                return self._of_name(node)
            case cst.BinaryOperation():
                return self._of_operation(node)
            case cst.Subscript(value=cst.Attribute(attr=cst.Name(value="shape"), value=array)):
                return self._extent(node, array)
            case cst.Subscript() if new_axes(node) is not None:
                return self.largest(node.value)
            case cst.Call():
                return self._of_call(node)
        raise Unbounded(f"{self.source.code(node)} has no bound that the launch knows")

    def _of_name(self, node: cst.Name) -> Number:
        found = reaching(self.source, node.value, node)
        if found is None:
            raise Unbounded(f"{node.value} may have several values here")
        if found.value is not None:
            return self.largest(found.value)
        if found.node is self.kernel:
            return self._parameter(node.value)
        match range_of(found.node):
            case [stop] | [cst.Integer(), stop]:
                return self.largest(stop) - 1
            case [cst.Call() as start, stop, cst.Call() as step] if self._are_of_blocks(start, step):
                return self.largest(stop) - 1
            case [start, stop, step] if number(start) == 0:
                size = self._divisor(step)
                return (self.largest(stop) - 1) // size * size
        raise Unbounded(f"{node.value} has no bound that the launch knows")

    def _parameter(self, name: str) -> Number:
        value = self.numbers.parameter(name)
        self.conditions.append(Below(-1, value))
        return value

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
                before, divisor = self.largest(node.left), self._divisor(node.right)
                self.conditions.append(Below(before, MOST))
                return before // divisor if isinstance(node.operator, cst.FloorDivide) else divisor - 1
        raise Unbounded(f"{self.source.code(node)} has no bound that the launch knows")

    def _of_call(self, node: cst.Call) -> Number:
        name, operands = tile_call(self.source, node), [arg.value for arg in node.args if arg.keyword is None]
        if (inside := _same_values(self.source, node)) is not None:
            return self.largest(inside)
        if name == "bid" and operands and isinstance(axis := number(operands[0]), int):
            return self.numbers.blocks(axis) - 1
        if name == "arange" and operands and argument(node, "start") is None and argument(node, "step") is None:
            _expect_wide(self.source, node, argument(node, "dtype", 1))
            self.sizes.append(self.largest(operands[0]))
            return self.sizes[-1] - 1
        if name == "cdiv" and len(operands) == 2:
            divisor = self._divisor(operands[1])
            return (self.largest(operands[0]) + (divisor - 1)) // divisor
        if name == "where" and len(operands) == 3:
            self.conditions += self._always(operands[0])
            self.chosen.append((node, operands[1]))
            return self.largest(operands[1])
        raise Unbounded(f"{self.source.code(node)} has no bound that the launch knows")

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
        raise Unbounded(f"{self.source.code(mask)} is no mask that the launch can decide")

    def _only(self, node: Expression) -> Number:
        """Returns the value of an expression that is the same in all blocks: a number, a parameter or an extent."""
        match node:
            case cst.Integer() | cst.Subscript(value=cst.Attribute(attr=cst.Name(value="shape"))):
                return self.largest(node)
            case cst.Call() if (inside := _same_values(self.source, node)) is not None:
                return self._only(inside)
            case cst.Name():
                found = reaching(self.source, node.value, node)
                if found is not None and found.value is not None:
                    return self._only(found.value)
                if found is not None and found.node is self.kernel:
                    return self._parameter(node.value)
        raise Unbounded(f"{self.source.code(node)} is not the same in all blocks")

    def _divisor(self, node: Expression) -> Number:
        value = self._only(node)
        if isinstance(value, int) and value < 1:
            raise NotApplicable(f"{self.source.code(node)} is not positive")
        self.conditions.append(Below(0, value))
        return value

    def _extent(self, node: cst.Subscript, array: Expression) -> Number:
        found = reaching(self.source, array.value, node) if isinstance(array, cst.Name) else None
        match node.slice:
            case [cst.SubscriptElement(slice=cst.Index(value=cst.Integer() as axis))] if found is not None:
                if found.node is self.kernel:
                    return self.numbers.extent(dotted(array), axis.evaluated_value)
        raise Unbounded(f"{self.source.code(node)} is no extent of an array")


def _same_values(source: Source, call: cst.Call) -> Expression | None:
    """Returns what a call converts, reshapes or repeats: ``x`` of ``ct.full((4,), x, x.dtype)``; None for other calls.

    Raises `NotApplicable` if the result might not hold the value.
    """
    if tile_call(source, call) == "full":
        inside, dtype = argument(call, "fill_value", 1), argument(call, "dtype", 2)
        if inside is not None and dtype is not None and dotted(dtype) != f"{dotted(inside)}.dtype":
            _expect_wide(source, call, dtype)
        return inside
    inside = rearranged(source, call)
    if inside is not None and same_elements(source, call) is not None:
        _expect_wide(source, call, argument(call, "dtype", 1 if tile_call(source, call) else 0))
    return inside


def _expect_wide(source: Source, call: cst.Call, dtype: Expression | None) -> None:
    """Raises `NotApplicable` if integers of a dtype have less than 32 bits. They might wrap."""
    if dtype is not None and dotted(dtype).rpartition(".")[2] not in ("int32", "int64", "uint32", "uint64"):
        raise NotApplicable(f"{source.code(call)} might wrap")
