"""Counts the iterations of a loop in the blocks of a launch, without running the kernel.

The scalars that the bounds need are computed as the kernel computes them: from the block's id, from numbers and shapes
that the launch passes, and from constants. What is loaded, or not understood, is drawn at random up to the longest
extent of an array: so two bounds of one loop can be compared, though neither is known.
"""

from __future__ import annotations

import ast
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, parameters
from tilewright.source.syntax import Source
from tilewright.task.task import Launch

Place: TypeAlias = tuple[str, int]
BLOCKS = 256
"""The most blocks of a grid for which iterations are counted; of more, a random sample."""


class NotKnown(Exception):
    """The value of an expression is not known without running the kernel."""


_OPERATIONS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.USub: operator.neg,
    ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Any]] = {
    "min": min, "max": max, "minimum": min, "maximum": max, "int": int, "abs": abs,
    "cdiv": lambda whole, part: -(-whole // part),
}  # fmt: skip


def blocks_of(launch: Launch) -> Iterator[tuple[int, ...]]:
    """Yields the ids of the blocks of a launch; a sample of `BLOCKS` of a larger grid, always the same."""
    grid = (*launch.grid, 1, 1)[:3]
    count = math.prod(grid)
    numbers: Sequence[int] = range(count)
    for number in numbers if count <= BLOCKS else random.Random(0).sample(numbers, BLOCKS):
        yield number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])


class Scalars:
    """The scalars of a function, up to a line of it. ``names``: their values.

    draw: returns a value for a scalar that is not known.
    """

    def __init__(
        self, names: dict[str, Any], block: Sequence[int], grid: Sequence[int], draw: Callable[[], int]
    ) -> None:
        self.names, self.block, self.grid, self.draw = names, block, (*grid, 1, 1)[:3], draw
        self.drawn, self.returned = set[str](), False

    def run(self, statements: Sequence[ast.stmt], before: int) -> bool:
        """Runs statements up to line ``before``. Returns whether it was reached."""
        for statement in statements:
            holds = before <= (statement.end_lineno or statement.lineno)
            is_block = isinstance(statement, (ast.If, ast.For, ast.While))
            if statement.lineno >= before or (holds and not is_block):
                return True
            if self._holds(statement, before):
                return True
            if self.returned or holds:
                return False
        return False

    def _holds(self, statement: ast.stmt, before: int) -> bool:
        last = statement.end_lineno or statement.lineno
        match statement:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self._set(name, ast.BinOp(ast.Name(name, ast.Load()), op, value))
            case ast.If():
                try:
                    test = self.value(statement.test)
                except NotKnown:
                    test = None
                inside = statement.lineno <= before <= last
                if test is None and inside:  # the loop is in one of the branches
                    test = before <= (statement.body[-1].end_lineno or 0)
                if test is None:
                    self._forget(statement)
                elif self.run(statement.body if test else statement.orelse, before) and inside:
                    return True
            case ast.For() | ast.While():
                self._forget(statement)
                if statement.lineno <= before <= last:
                    return self.run(statement.body, before)
            case ast.Return():
                self.returned = True
            case _:
                self._forget(statement)
        return False

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), _:
                self._set(name, value)
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for each, given in zip(targets, values, strict=True):
                    self._assign(each, given)
            case _:
                self._forget(target)

    def _forget(self, node: ast.AST) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                self._set(each.id, None)

    def _set(self, name: str, value: ast.expr | None) -> None:
        self.names[name], drawn = self._given(value)
        (self.drawn.add if drawn else self.drawn.discard)(name)

    def _given(self, value: ast.expr | None) -> tuple[Any, bool]:
        """Returns the value of an expression, or else a drawn value; and whether it depends on a drawn one."""
        try:
            return (self.draw(), True) if value is None else (self.value(value), self.depends(value))
        except NotKnown:
            return self.draw(), True

    def inside(self, function: ast.FunctionDef, call: ast.Call) -> Scalars:
        """Returns the scalars of a function that is called here: its parameters."""
        passed = {each.arg: value for each, value in zip(function.args.args, call.args, strict=False)}
        passed |= {each.arg: each.value for each in call.keywords if each.arg}
        found = Scalars({}, self.block, self.grid, self.draw)
        for parameter, value in passed.items():
            found.names[parameter], drawn = self._given(value)
            found.drawn |= {parameter} if drawn else set()
        return found

    def copy(self) -> Scalars:
        made = Scalars(dict(self.names), self.block, self.grid, self.draw)
        made.drawn |= self.drawn
        return made

    def depends(self, node: ast.expr) -> bool:
        """Returns whether an expression reads a value that was drawn."""
        return any(isinstance(each, ast.Name) and each.id in self.drawn for each in ast.walk(node))

    def value(self, node: ast.expr) -> Any:
        """Returns the value of an expression. Raises NotKnown."""
        try:
            value = self._value(node)
        except (ArithmeticError, AttributeError, IndexError, TypeError, KeyError, ValueError):
            value = NotKnown
        if value is NotKnown:
            raise NotKnown(ast.unparse(node))
        return value

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                return value
            case ast.Name(id=name):
                return self.names[name]
            case ast.Attribute(value=ast.Name(id=name), attr="shape" | "dtype" | "ndim" as attr):
                return getattr(self.names[name], attr)
            case ast.Subscript(value=whole, slice=part):
                return self.value(whole)[self.value(part)]
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATIONS[type(op)](self.value(left), self.value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return _OPERATIONS[type(op)](self.value(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _OPERATIONS[type(op)](self.value(left), self.value(right))
            case ast.BoolOp(op=op, values=values):
                results = (self.value(each) for each in values)
                return all(results) if isinstance(op, ast.And) else any(results)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test) else orelse)
            case ast.Call(func=func, args=args, keywords=keywords):
                name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
                if name in ("bid", "num_blocks"):
                    [axis] = [*args, *(each.value for each in keywords)]
                    return (self.block if name == "bid" else self.grid)[self.value(axis)]
                return _CALLS[name](*map(self.value, args))
        return NotKnown


@dataclass(frozen=True)
class Sums:
    """The iterations of a loop in the blocks of launches: of one range, and of a part of it.

    drawn: whether a value was drawn at random.
    shares: the share of the part in each launch.
    """

    every: int
    some: int
    drawn: bool
    shares: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.some / max(self.every, 1):.0%} of the" if self.drawn else f"{self.some:,} of {self.every:,}"


def sums(source: Source, kernel: str, launches: Sequence[Launch], place: Place, expressions: Sequence[str]) -> Sums:
    """Returns the sums of two expressions, as they are at a line of the kernel or of a function that the kernel calls,
    over the blocks that get there.

    place: the function, and the line. Raises NotKnown.
    """
    nodes = [each for each in ast.parse(source.text).body if isinstance(each, ast.FunctionDef)]
    functions = {each.name: each for each in nodes if place[0] in source.called_by([each.name])}
    parsed = [ast.parse(text, mode="eval").body for text in expressions]
    totals, drawn, shares = [0] * len(parsed), False, list[float]()
    for launch in launches:
        before = totals
        longest = max((extent for array in launch.args for extent in getattr(array, "shape", ())), default=1)
        numbers = random.Random(0)
        for block in blocks_of(launch):
            names = dict(zip(parameters(source.kernels[kernel]), launch.args, strict=False))
            scalars = Scalars(names, block, launch.grid, lambda: numbers.randint(0, longest))  # noqa: B023
            for reached in _reached(functions, scalars, functions[kernel], place):
                values = [int(reached.value(each)) for each in parsed]
                totals = [total + value for total, value in zip(totals, values, strict=True)]
                drawn = drawn or any(map(reached.depends, parsed))
        shares.append((totals[1] - before[1]) / max(totals[0] - before[0], 1))
    return Sums(totals[0], totals[1], drawn, tuple(shares))


def may_run(source: Source, kernel: str, launches: Sequence[Launch], node: cst.CSTNode) -> bool:
    """Returns whether a node of the kernel may run: what the launches pass may decide against a branch around it."""
    function = source.kernels[kernel]
    changed = names_assigned(function.body)
    for launch in launches:
        given = zip(parameters(function), launch.args, strict=False)
        known = {name: value for name, value in given if name not in changed}
        if all(decided(source.code(test), known) in (result, None) for test, result in _tests(source, node)):
            return True
    return False


def decided(test: str, known: Mapping[str, Any]) -> bool | None:
    """Returns the value of a test; None if the ``known`` numbers do not decide it."""
    try:
        return bool(Scalars(dict(known), (), (), lambda: 0).value(ast.parse(test, mode="eval").body))
    except NotKnown:
        return None


def _tests(source: Source, node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yields the test of each ``if`` around a node, with the result with which the node runs."""
    for above in source.parents(node):
        if isinstance(above, cst.If):
            yield above.test, node is above.body
        node = above


def _reached(
    functions: Mapping[str, ast.FunctionDef], scalars: Scalars, function: ast.FunctionDef, place: Place
) -> Iterator[Scalars]:
    """Yields the scalars at a place: once for a place in ``function`` itself, and once for each way of calls to it.

    functions: those from which the place is reached.
    """
    name, line = place
    if function.name == name:
        if scalars.run(function.body, line):
            yield scalars
        return
    others = {name: other for name, other in functions.items() if other is not function}
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        called = others.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if called is not None:
            here = scalars.copy()
            if here.run(function.body, call.lineno):
                yield from _reached(others, here.inside(called, call), called, place)
