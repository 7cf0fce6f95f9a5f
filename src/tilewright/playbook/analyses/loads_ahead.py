"""Finds the loads in a loop that can be made before their iteration, and writes them for another iteration.

    for i in range(n):
        page = ct.gather(pages, (first + i,)).item()    # known one iteration ahead, and two
        if PAGED:                                       # a constant of the kernel
            k = ct.load(keys, (page, 0), (1, D))        # known one iteration ahead, if `pages` is loaded two ahead

The address of such a load depends on the loop's variable, on what the loop does not change, and on padded loads whose
own addresses depend on no load. It reads an array that the kernel does not write, and its bounds are checked: beyond
the last iteration, and in a loop without iterations, it reads no memory outside the array, whatever its address is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import libcst as cst

from tilewright.playbook.analyses.constants import is_constant
from tilewright.playbook.analyses.dataflow import Effects, assignments, names_assigned, names_read
from tilewright.playbook.analyses.expressions import fitting
from tilewright.playbook.analyses.renaming import NewNames
from tilewright.playbook.analyses.tile_shapes import is_true, tile_call
from tilewright.playbook.analyses.unchanged import is_read, read_outside
from tilewright.source.syntax import Expression, Function, Line, Source, argument, dotted, with_argument

Branches: TypeAlias = tuple[tuple[str, bool], ...]
"""The branches around a statement, from the outermost: the constant test of each ``if`` as text, and its result."""


@dataclass(frozen=True, eq=False)
class LoopLoad:
    """A load whose address is known ahead. ``needs``: the loads that the address depends on."""

    call: cst.Call
    branches: Branches
    needs: tuple[LoopLoad, ...]

    @property
    def array(self) -> str:
        return dotted(self.call.args[0].value)


@dataclass(frozen=True, eq=False)
class _KnownAhead:
    """The ``value`` that the statement ``line`` gives a name, and the loads that it ``needs``."""

    line: Line
    value: Expression
    branches: Branches
    needs: tuple[LoopLoad, ...]


class LoadsAhead:
    """The ``loads`` of one loop that can be made ahead, in the order of the text.

    ``given`` holds the names that the loop assigns and whose values are known ahead.
    """

    def __init__(self, source: Source, function: Function, loop: cst.For) -> None:
        self.source, self.function, self.loop = source, function, loop
        self.variable = dotted(loop.target)
        self.loads: list[LoopLoad] = []
        self._assigned, self._effects = names_assigned(loop.body), Effects(source, function)
        self.given: dict[str, _KnownAhead] = {}
        carried = set[str]()  # names that the loop reads before it assigns them
        for line, name, value in assignments(source, loop.body):
            carried |= names_read(value) - set(self.given)
            branches = self._branches(line)
            if branches is None or name in carried:
                continue
            for call in reversed(source.every(cst.Call, value)):  # inner calls first
                self.loads += self._load(call, branches)
            needs = self._needs(value, branches)
            if needs is not None and self._assigned[name] == 1 and self._effects.is_pure(value):
                self.given[name] = _KnownAhead(line, value, branches, needs)
        self.loads.sort(key=lambda load: source.place(load.call))

    def text(self, load: LoopLoad, at: str, loaded: Mapping[LoopLoad, str], latency: int | None = None) -> str:
        """Returns the load for the iteration in which the loop's variable is ``at``.

        loaded: the names that hold the tiles of ``load.needs`` of that iteration.
        latency: the load's new hint; None keeps the old one.
        """
        tiles: dict[cst.CSTNode, str] = {needed.call: loaded[needed] for needed in load.needs}
        new = self.put(load.call, at, tiles)
        if latency is not None:
            assert isinstance(new, cst.Call)
            new = with_argument(new, "latency", str(latency))
        return self.source.code(new)

    def unread(self, moved: Sequence[LoopLoad]) -> list[Line]:
        """Returns the statements that nothing reads any more once the loads ``moved`` are made elsewhere."""
        gone: list[cst.CSTNode] = [load.call for load in moved]
        outside = read_outside(self.source, self.function, self.loop)
        names = {name for call in gone for name in self._behind(call)} - outside
        lines = {name: self.given[name].line for name in names if _assigns_only(self.given[name].line, name)}
        unread: list[Line] = []
        while more := [line for name, line in lines.items() if line not in unread and not self._is_read(name, gone)]:
            unread += more
            gone += more
        return unread

    def is_left(self, load: LoopLoad, moved: Sequence[LoopLoad], unread: Sequence[Line]) -> bool:
        """Returns whether the loop still reads a load without the loads ``moved`` and the statements ``unread``."""
        gone = [*(other.call for other in moved), *unread]
        return not any(above in gone for above in self.source.parents(load.call))

    def _is_read(self, name: str, gone: Sequence[cst.CSTNode]) -> bool:
        """Returns whether the loop reads a name elsewhere than in ``gone``."""
        uses = (node for node in self.source.every(cst.Name, self.loop.body) if node.value == name)
        return any(
            is_read(self.source, node) and not any(above in gone for above in self.source.parents(node))
            for node in uses
        )

    def _branches(self, line: Line) -> Branches | None:
        """Returns the branches around a statement of the loop; None if it may not run in each iteration."""
        found: list[tuple[str, bool]] = []
        below: cst.CSTNode = line
        for above in self.source.parents(line):
            if above is self.loop.body:
                return tuple(reversed(found))
            if isinstance(above, cst.If):
                constant = is_constant(self.source, self.function, above.test)
                if not constant or names_read(above.test) & set(self._assigned):
                    return None
                test, holds = branch_of(self.source, above)
                found.append((test, holds == (below is above.body)))
            elif not isinstance(above, (cst.IndentedBlock, cst.Else)):
                return None
            below = above
        return None

    def _load(self, call: cst.Call, branches: Branches) -> Iterator[LoopLoad]:
        """Yields a call as a load that can be made ahead; nothing for any other call."""
        bounds = argument(call, "check_bounds")
        checked = bounds is None or is_true(bounds) is True
        if tile_call(self.source, call) in ("load", "gather") and checked and self._effects.is_pure(call):
            needs = self._needs(call, branches)
            depends = any(self.variable in names_read(node) for node in (call, *self._values_behind(call)))
            if needs is not None and depends and all(not each.needs and self._is_padded(each.call) for each in needs):
                yield LoopLoad(call, branches, needs)

    def _is_padded(self, call: cst.Call) -> bool:
        """Returns whether a load has a known value beyond the array, too."""
        mode = argument(call, "padding_mode")
        undetermined = mode is None or dotted(mode).endswith("UNDETERMINED")
        return tile_call(self.source, call) == "gather" or not undetermined

    def _needs(self, node: Expression, branches: Branches) -> tuple[LoopLoad, ...] | None:
        """Returns the loads in an expression, other than itself, and those behind its names; None if its value is not
        known ahead."""
        needs = dict[LoopLoad, None]()
        known = {load.call: load for load in self.loads}
        for call in self.source.every(cst.Call, node):
            if call is not node and self._effects.is_load(call):
                if call not in known:
                    return None
                needs[known[call]] = None
        for name in names_read(node) & set(self._assigned):
            given = self.given.get(name)
            if given is None or not set(given.branches) <= set(branches):
                return None
            needs |= dict.fromkeys(given.needs)
        return tuple(sorted(needs, key=lambda load: self.source.place(load.call)))

    def _behind(self, node: cst.CSTNode) -> set[str]:
        """Returns the names that the loop assigns and on which an expression depends, if their values are known."""
        found = names_read(node) & set(self.given)
        return found.union(*(self._behind(self.given[name].value) for name in found))

    def _values_behind(self, node: cst.CSTNode) -> Iterator[Expression]:
        yield from (self.given[name].value for name in self._behind(node))

    def put(self, node: Expression, at: str, tiles: Mapping[cst.CSTNode, str]) -> Expression:
        """Returns an expression with ``at`` in place of the loop's variable, with names in place of the loads in
        ``tiles``, and without names that the loop assigns."""
        new = node.visit(_Put(self, at, tiles))
        assert isinstance(new, cst.BaseExpression)
        return new


def branch_of(source: Source, node: cst.If) -> tuple[str, bool]:
    """Returns the test of an ``if`` without ``not``, and its result in the body of the ``if``."""
    match node.test:
        case cst.UnaryOperation(operator=cst.Not(), expression=inside):
            return source.code(inside), False
    return source.code(node.test), True


class _Put(NewNames):
    """Writes an expression for another iteration, as `LoadsAhead.put` does."""

    def __init__(self, loop: LoadsAhead, at: str, tiles: Mapping[cst.CSTNode, str]) -> None:
        super().__init__({})
        self.loop, self.at, self.tiles = loop, at, tiles

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        source, at = self.loop.source, self.at
        if (given := self.loop.given.get(original_node.value)) is not None:
            at = source.code(self.loop.put(given.value, self.at, self.tiles))
        elif original_node.value != self.loop.variable:
            return updated_node
        return fitting(source, original_node, at)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        return cst.Name(self.tiles[original_node]) if original_node in self.tiles else updated_node

    def leave_BinaryOperation(
        self, original_node: cst.BinaryOperation, updated_node: cst.BinaryOperation
    ) -> cst.BaseExpression:
        left, right = (side.evaluated_value if isinstance(side, cst.Integer) else None
                       for side in (updated_node.left, updated_node.right))  # fmt: skip
        match updated_node.operator, left, right:
            case (cst.Add(), 0, _) | (cst.Multiply(), 1, _):
                return updated_node.right
            case (cst.Add() | cst.Subtract(), _, 0) | (cst.Multiply(), _, 1):
                return updated_node.left
            case (cst.Multiply(), 0, _) if self._is_constant(original_node.right):  # no tile, whose shape would be lost
                return updated_node.left
            case (cst.Multiply(), _, 0) if self._is_constant(original_node.left):
                return updated_node.right
        return updated_node

    def _is_constant(self, node: Expression) -> bool:
        return is_constant(self.loop.source, self.loop.function, node)


def _assigns_only(line: Line, name: str) -> bool:
    """Returns whether a statement assigns this name and nothing else."""
    return len(line.body) == 1 and names_assigned(line) == {name: 1}
