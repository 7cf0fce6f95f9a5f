"""Loads a row once, as one tile, where a block reads the row in chunks and more than once.

The loops over the chunks disappear: the tile becomes as wide as the row, so that each loop would run once. A load that
an earlier loop has made is not made again. The row stays in registers, so the entry is for rows that fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.dataflow import names_assigned, parameters, range_of, reaching
from tilewright.playbook.analyses.repeated import without_repeated
from tilewright.playbook.analyses.tile_shapes import FIT_IN_REGISTERS, tile_call
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Changes, Source, dotted, number
from tilewright.task.task import Launch

WHOLE_ROW = "whole row"


class OnePass(Entry):
    about = EntryDescription(
        id="one_pass",
        name="one pass over a row",
        what="one tile for the whole row in place of loops over its chunks; each element is loaded once",
        when="a block reads its row in chunks, more than once, and the row fits into registers (32768 elements)",
        when_not="longer rows; rows that are read only once",
        priority={"memory": 1, "balanced": 2},
        eases=("traffic", "issue slots", "bytes in flight"),
        together=HINTS_OF_TILES,
        order=192,
        effect=Effect.assumed(1.0, 1.6),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = task_code.own_kernel(facts, source)
        chunked = unless_refused(_chunked, source, kernel) if kernel else None
        if chunked is None:
            return []
        longest = max(_length(chunked, source, kernel, launch) for launch in facts.launches)
        what = f"{len(chunked.loops)} loops over {chunked.length} in chunks of {chunked.tile}"
        site = Site.at(source, source.kernels[kernel], what, (WHOLE_ROW,), why=f"rows of up to {longest:,} elements")
        return [site] if 0 < longest <= FIT_IN_REGISTERS and self.applies(source, site) else []

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        if value != WHOLE_ROW:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {WHOLE_ROW}")
        chunked = _chunked(source, kernel)
        whole = _in_launch(source, kernel, chunked)
        given = task_code.argument_of(source, kernel, chunked.tile)
        assert given is not None
        wide = cst.parse_expression(f"max({source.code(given)}, 1 << ({whole} - 1).bit_length())")
        changes: Changes = {loop: cst.FlattenSentinel(_once(loop)) for loop in chunked.loops}
        changed, removed = without_repeated(source.changed({**changes, given: wide}), kernel)
        if not removed:
            raise NotApplicable(f"{kernel} loads no element of its row twice")
        return changed.text


@dataclass(frozen=True)
class _Chunked:
    """The loops of a kernel over the chunks of a row. ``tile``: the parameter with the size of a chunk. ``length``: the
    length of the row, as the kernel writes it."""

    loops: tuple[cst.For, ...]
    tile: str
    length: str


def _chunked(source: Source, kernel: str) -> _Chunked:
    """Finds the loops over the chunks of a row. Raises `NotApplicable` if there are fewer than two."""
    function = source.kernels[kernel]
    found: dict[tuple[str, str], list[cst.For]] = {}
    for loop in source.every(cst.For, function):
        counted = _chunks(source, loop)
        if counted is not None and source.parent(loop) is function.body and isinstance(loop.target, cst.Name):
            found.setdefault(counted, []).append(loop)
    (length, tile), loops = max(found.items(), key=lambda each: len(each[1]), default=(("", ""), []))
    if len(loops) < 2 or tile not in parameters(function):
        raise NotApplicable(f"{kernel} has no two loops over the chunks of a row")
    if leaving := next((each for loop in loops for kind in _LEAVING for each in source.every(kind, loop)), None):
        raise NotApplicable(f"{source.name}:{source.place(leaving)[0]}: the loop over chunks may end early")
    if any(dotted(loop.target) in names_assigned(loop.body) for loop in loops):
        raise NotApplicable(f"{kernel} changes the number of a chunk")
    return _Chunked(tuple(loops), tile, length)


_LEAVING = (cst.Break, cst.Continue, cst.Return)


def _chunks(source: Source, loop: cst.For) -> tuple[str, str] | None:
    """Returns length and tile for a loop over ``range(ct.cdiv(length, tile))``; None for any other loop."""
    bounds = range_of(loop)
    count = bounds[0] if len(bounds) == 1 else bounds[1] if len(bounds) == 2 and number(bounds[0]) == 0 else None
    if isinstance(count, cst.Name) and (definition := reaching(source, count.value, loop)) is not None:
        count = definition.value
    if not isinstance(count, cst.Call) or tile_call(source, count) != "cdiv" or len(count.args) != 2:
        return None
    length, tile = (arg.value for arg in count.args)
    return (source.code(length), tile.value) if isinstance(tile, cst.Name) else None


def _in_launch(source: Source, kernel: str, chunked: _Chunked) -> str:
    """Returns the length of the row as an expression of the launch. Raises `NotApplicable` if it is not known there, or
    if the launch uses the size of a chunk elsewhere, too."""
    launch = task_code.launch_of(source)
    given = task_code.argument_of(source, kernel, chunked.tile)
    if given is None:
        raise NotApplicable(f"{source.name}: the launch does not list what it passes for {chunked.tile}")
    code = source.code(given)
    others = [each for each in source.every(type(given), launch.function) if source.code(each) == code]
    if len(others) > 1:
        raise NotApplicable(f"{source.name}: the launch uses {code} for more than the size of a chunk")
    name, dot, rest = chunked.length.partition(".")
    passed = task_code.argument_of(source, kernel, name)
    if chunked.length.isdigit():
        return chunked.length
    if passed is None:
        raise NotApplicable(f"{source.name}: the launch does not know {chunked.length}")
    return f"{source.code(passed)}{dot}{rest}"


def _length(chunked: _Chunked, source: Source, kernel: str, launch: Launch) -> int:
    """Returns the length of the row in a launch; 0 if it is not known."""
    name, _, rest = chunked.length.partition(".")
    names = parameters(source.kernels[kernel])
    given: Any = launch.args[names.index(name)] if name in names else chunked.length
    if rest.startswith("shape[") and rest[6:-1].isdigit():
        given = given.shape[int(rest[6:-1])]
    return int(given) if str(given).isdigit() else 0


def _once(loop: cst.For) -> Iterator[cst.BaseStatement]:
    """Yields the statements of one iteration, for the first chunk."""
    body = loop.body
    assert isinstance(body, cst.IndentedBlock)
    above = [*loop.leading_lines]
    if body.header.comment is not None:
        above.append(cst.EmptyLine(comment=body.header.comment))
    yield cst.parse_statement(f"{dotted(loop.target)} = 0").with_changes(leading_lines=above)
    yield from body.body


ENTRY = OnePass()
