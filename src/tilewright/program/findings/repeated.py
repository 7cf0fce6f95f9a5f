"""Finds the loops of a program that run the same operations again and again in one step, each time independently."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.program.findings.loops import SourceLoop
from tilewright.program.findings.record import PURE_VIEWS, Line, Operation, RecordedPart, RecordedRun

WRITES = ("copy", "fill", "index_put", "zero")
MOST_PAIRS, CHAINS = 128, 3
NEAR = 400
"""The most operations that are followed from one pass to the next."""


@dataclass(frozen=True)
class Repeated:
    """A loop in one part. ``passes``: how often it runs its most frequent operation before something else runs;
    ``times``: how often in the part.

    independent: the operations that use no result of the pass before.
    """

    loop: SourceLoop
    lines: tuple[Line, ...]
    passes: int
    times: int
    operations: tuple[Operation, ...]
    independent: tuple[Operation, ...]


def repeated(run: RecordedRun, part: RecordedPart) -> Iterator[Repeated]:
    """Yields the innermost loop of each group of operations that some loop repeats. Loops over steps are left out."""
    outer = _stepping(run, part)
    found: dict[SourceLoop, list[tuple[Operation, Line]]] = defaultdict(list)
    for each in part.operations:
        if not each.backward and (at := _loop_of(each, run.loops, outer)) is not None:
            found[at[0]].append((each, at[1]))
    for loop, members in found.items():
        operations = tuple(each for each, _ in members)
        groups = _groups(operations)
        if not groups:
            continue
        passes = max(_passes(group, operations) for group in groups.values())
        most = [group for group in groups.values() if 2 * len(group) >= passes]
        nested = any(
            loop.inside(other) and other not in outer for other in run.loops if other.function == loop.function
        )
        alone = tuple(each for group in most if independent(run, part, group, nested) for each in group)
        lines = tuple(sorted({line for _, line in members}))
        times = max(map(len, groups.values()))
        yield Repeated(loop, lines, passes, times, operations, alone)


def _passes(group: Sequence[Operation], operations: Sequence[Operation]) -> int:
    """Returns how often a loop runs an operation before something else than the loop runs."""
    inside = {each.at for each in operations}
    longest = length = 1
    for one, two in pairwise(group):
        other = any(at not in inside for at in range(one.at + 1, two.at))
        length = 1 if other else length + 1
        longest = max(longest, length)
    return longest


def _stepping(run: RecordedRun, part: RecordedPart) -> set[SourceLoop]:
    """Returns the loops whose passes are steps: those around a backward pass, or around all operations of a step."""
    lines = {line for one in run.stored for event in one.events if event.kind == "backward" for line in event.lines}
    if lines:
        return {loop for loop in run.loops for line in lines if loop.has(line.file, line.line)}
    step = [each for each in (run.steps[0] if run.steps else part).operations if each.lines]
    return {loop for loop in run.loops if all(any(loop.has(at.file, at.line) for at in each.lines) for each in step)}


def _loop_of(each: Operation, loops: Sequence[SourceLoop], outer: set[SourceLoop]) -> tuple[SourceLoop, Line] | None:
    """Returns the innermost loop that runs an operation, and the line in it."""
    for line in each.lines:
        around = [loop for loop in loops if loop.has(line.file, line.line) and loop not in outer]
        if around:
            return min(around, key=lambda loop: loop.last - loop.first), line
    return None


def _groups(operations: Sequence[Operation]) -> Mapping[tuple[object, ...], list[Operation]]:
    """Groups operations that are alike but for the pass: at the same lines, with the same name. Views count only in a
    loop that has nothing else.
    """
    groups: dict[tuple[object, ...], list[Operation]] = defaultdict(list)
    for each in operations:
        groups[each.lines, each.name].append(each)
    repeated = {key: group for key, group in groups.items() if len(group) > 1}
    computing = {key: group for key, group in repeated.items() if group[0].name not in PURE_VIEWS and group[0].outs}
    return computing or repeated


def independent(run: RecordedRun, part: RecordedPart, group: Sequence[Operation], nested: bool) -> bool:
    """Whether most operations of a group use no result of the one before them. ``nested``: whether a loop is around
    their loop; then some chains that do not depend on each other are enough.
    """
    pairs = list(pairwise(group))[:MOST_PAIRS]
    free = sum(not _reaches(run, part, one, two) for one, two in pairs)
    return 2 * free > len(pairs) or (nested and free >= CHAINS)


def _reaches(run: RecordedRun, part: RecordedPart, one: Operation, two: Operation) -> bool:
    needed = two.ins[1:2] if two.base in WRITES else two.ins  # what a write replaces is no input of it
    reached = set(one.outs)
    for each in part.operations[one.at + 1 : min(two.at, one.at + NEAR)]:
        if not reached.isdisjoint(each.ins):
            reached.update(each.outs)
    return not reached.isdisjoint(needed)
