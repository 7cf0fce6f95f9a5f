"""Finds the loops in which a block reads a row in chunks, and writes one iteration of such a loop as plain statements.

Known forms, with ``count = ct.cdiv(length, tile)``, ``(length + tile - 1) // tile`` or ``ct.num_tiles(x, axis, …)``:

    for n in range(count)               n is the number of a chunk
    for start in range(0, length, tile)     start is the first column of a chunk
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, parameters, range_of, reaching
from tilewright.playbook.analyses.renaming import renamed
from tilewright.playbook.analyses.task_code import fresh_in
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS, tile_call
from tilewright.playbook.base import KernelFacts, NotApplicable, Site
from tilewright.source.syntax import Expression, Source, argument, dotted, elements, number
from tilewright.task.task import Launch

LEAVING = (cst.Break, cst.Continue, cst.Return)
Pair: TypeAlias = tuple[cst.For, cst.For]
"""Two loops over the chunks of a row, one after the other."""
Found = TypeVar("Found")
SHORT = 0.5
"""The promise of one pass less over rows that fit into registers: `one_pass` reads them only once."""


@dataclass(frozen=True, eq=False)
class Chunked:
    """The loops over the chunks of a row, all in one ``block`` of a kernel.

    tile: the parameter with the size of a chunk. length: the length of the row, as the kernel writes it.
    """

    loops: tuple[cst.For, ...]
    block: cst.IndentedBlock
    tile: str
    length: str

    def between(self, loops: Pair) -> list[cst.BaseStatement]:
        """Returns the statements between two of the loops."""
        body = list(self.block.body)
        return body[body.index(loops[0]) + 1 : body.index(loops[1])]


def chunked(source: Source, kernel: str, least: int = 1) -> Chunked:
    """Finds the loops over the chunks of a row. Raises `NotApplicable` if there are fewer than ``least``."""
    function = source.kernels[kernel]
    found: dict[tuple[str, str, int], list[cst.For]] = {}
    for loop in source.every(cst.For, function):
        row = _row_of(source, loop)
        if row is not None and isinstance(loop.target, cst.Name) and row[1] in parameters(function):
            found.setdefault((*row, id(source.parent(loop))), []).append(loop)
    (length, tile, _), loops = max(found.items(), key=lambda each: len(each[1]), default=(("", "", 0), []))
    if len(loops) < least:
        raise NotApplicable(f"{kernel} has no {least} loops over the chunks of a row")
    if leaving := next((each for loop in loops for kind in LEAVING for each in source.every(kind, loop)), None):
        raise NotApplicable(f"{source.name}:{source.place(leaving)[0]}: the loop over chunks may end early")
    if any(dotted(loop.target) in names_assigned(loop.body) for loop in loops):
        raise NotApplicable(f"{kernel} changes the number of a chunk")
    block = source.parent(loops[0])
    assert isinstance(block, cst.IndentedBlock), "a loop is in the body of a function, or of another statement"
    return Chunked(tuple(loops), block, tile, length)


def first_pair(source: Source, kernel: str, paired: Callable[[Source, str, Chunked, Pair], Found]) -> Found:
    """Returns what ``paired`` makes of the first two loops that may become one.

    Raises `NotApplicable` with the reason of the last pair if ``paired`` refuses all.
    """
    found = chunked(source, kernel, 2)
    reasons = []
    for loops in pairwise(found.loops):
        try:
            return paired(source, kernel, found, loops)
        except NotApplicable as reason:
            reasons.append(reason)
    raise reasons[-1]


def _row_of(source: Source, loop: cst.For) -> tuple[str, str] | None:
    """Returns length and tile of a loop over the chunks of a row; None for any other loop."""
    match range_of(loop):
        case [count]:
            pass
        case [start, count] if number(start) == 0:
            pass
        case [start, length, cst.Name(value=tile)] if number(start) == 0:
            return source.code(length), tile
        case _:
            return None
    if isinstance(count, cst.Name) and (definition := reaching(source, count.value, loop)) is not None:
        count = definition.value or count
    return _divided(source, count)


def _divided(source: Source, count: Expression) -> tuple[str, str] | None:
    """Returns length and tile of ``ct.cdiv(length, tile)``, ``(length + tile - 1) // tile`` and ``ct.num_tiles(…)``."""
    match count:
        case cst.Call() if tile_call(source, count) == "num_tiles":
            array, axis = argument(count, "array", 0), number(argument(count, "axis", 1))
            sizes = elements(argument(count, "shape", 2)) or []
            if not isinstance(array, cst.Name) or not isinstance(axis, int) or not -1 < axis < len(sizes):
                return None
            size = sizes[axis]
            return (f"{array.value}.shape[{axis}]", size.value) if isinstance(size, cst.Name) else None
        case cst.Call() if tile_call(source, count) == "cdiv" and len(count.args) == 2:
            length, tile = (arg.value for arg in count.args)
            return (source.code(length), tile.value) if isinstance(tile, cst.Name) else None
        case cst.BinaryOperation(
            operator=cst.FloorDivide(),
            left=cst.BinaryOperation(
                operator=cst.Subtract(),
                left=cst.BinaryOperation(left=length, operator=cst.Add(), right=cst.Name(value=added)),
                right=one,
            ),
            right=cst.Name(value=tile),
        ) if added == tile and number(one) == 1:
            return source.code(length), tile
    return None


def longest_row(found: Chunked, source: Source, kernel: str, facts: KernelFacts) -> int:
    """Returns the length of the longest row of all launches; 0 if it is not known."""
    return max(_row_length(found, source, kernel, launch) for launch in facts.launches)


def site_of_passes(source: Source, kernel: str, found: Chunked, facts: KernelFacts, what: str, value: str) -> Site:
    """Returns the site of a change that reads a row in one pass less."""
    longest = longest_row(found, source, kernel, facts)
    promise, why = SHORT if longest <= FIT_IN_REGISTERS else 1.0, f"rows of up to {longest:,} elements"
    return Site.at(source, source.kernels[kernel], what, (value,), promise, why)


def _row_length(found: Chunked, source: Source, kernel: str, launch: Launch) -> int:
    name, _, rest = found.length.partition(".")
    names = parameters(source.kernels[kernel])
    given: Any = launch.args[names.index(name)] if name in names else found.length
    if rest.startswith("shape[") and rest[6:-1].isdigit():
        given = given.shape[int(rest[6:-1])]
    return int(given) if str(given).isdigit() else 0


def once(loop: cst.For) -> Iterator[cst.BaseStatement]:
    """Yields the statements of one iteration, for the first chunk."""
    body = loop.body
    assert isinstance(body, cst.IndentedBlock)
    above = [*loop.leading_lines]
    if body.header.comment is not None:
        above.append(cst.EmptyLine(comment=body.header.comment))
    yield cst.parse_statement(f"{dotted(loop.target)} = 0").with_changes(leading_lines=above)
    yield from body.body


def with_own_names(source: Source, kernel: str, loops: Sequence[cst.For]) -> Source:
    """Returns the source in which the loops assign no name twice: ``tile = f(tile)`` becomes ``tile = f(tile_1)``.

    So a value that a later loop computes again still has a name there. Loops with equal statements get equal names.
    """
    fresh: dict[tuple[str, int], str] = {}
    changes: dict[cst.CSTNode, cst.CSTNode] = {}
    for loop in loops:
        body = loop.body.body
        plain = Counter(target for statement in body if (target := plain_target(statement)))
        again = {name for name, times in names_assigned(loop.body).items() if plain[name] == times > 1}
        now: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for statement in body:
            assert isinstance(statement, cst.BaseStatement)
            new, target = renamed(statement, now), plain_target(statement)
            if target in again:
                seen[target] += 1
                if seen[target] < plain[target]:
                    place = target, seen[target]
                    now[target] = fresh.setdefault(place, fresh_in(source, kernel, f"{target}_{seen[target]}"))
                else:
                    now.pop(target)
                new = _assigning(new, now.get(target, target))
            changes[statement] = new
    return source.changed(changes)


def plain_target(statement: cst.CSTNode) -> str:
    """Returns the name that a plain assignment ``name = value`` assigns; "" for any other statement."""
    match statement:
        case cst.SimpleStatementLine(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))])]):
            return name
    return ""


def assigned_value(statement: cst.CSTNode) -> Expression | None:
    """Returns the value of a plain assignment; None for any other statement."""
    match statement:
        case cst.SimpleStatementLine(body=[cst.Assign(value=value)]) if plain_target(statement):
            return value
    return None


def _assigning(statement: cst.BaseStatement, name: str) -> cst.BaseStatement:
    assert isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Assign)
    target = statement.body[0].targets[0].with_changes(target=cst.Name(name))
    return statement.with_changes(body=[statement.body[0].with_changes(targets=[target])])
