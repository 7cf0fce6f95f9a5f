"""Finds kernels that only prepare the input of the next kernel, so that both could be one kernel.

A *producer* writes an array that the launch directly after it, its *consumer*, reads, and that no later launch reads.
As one kernel, both would neither write nor read this *intermediate* array.

Only launches are known. A torch operation may read the intermediate array, too. So may the caller, if it is returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.errors import RequestError, TilewrightError
from tilewright.runtime.capture.described import Argument, DescribedLaunch, extent_bytes
from tilewright.runtime.capture.facts import accesses, named
from tilewright.runtime.capture.record import Capture, OrderedLaunch, ProcessRecord, kind_of


@dataclass(frozen=True)
class Pair:
    """A kind of launch directly before another kind that reads its output. Rows are numbers as in `record.chosen`."""

    producer: int
    consumer: int
    written: str
    """The parameter of the producer that gets the intermediate array."""
    read: str
    """The parameter of the consumer that gets it."""
    nbytes: int
    """The size of the intermediate array. A fused kernel neither writes nor reads it, and saves twice as many bytes."""
    times: int
    """How often the one directly follows the other among the recorded first launches."""
    addresses: tuple[tuple[int, ...], tuple[int, ...]]
    """The addresses of the arrays of the first such two launches, in the order of `DescribedLaunch.arrays`."""
    problem: str = ""
    """Why the launches show that the two must not be fused; empty if they do not."""

    @property
    def saved_bytes(self) -> int:
        return 2 * self.nbytes * self.times


@dataclass(frozen=True)
class _Use:
    """How a launch uses one array. ``start``, ``end``: its addresses."""

    argument: Argument
    start: int
    end: int
    is_read: bool
    is_written: bool

    def overlaps(self, other: _Use) -> bool:
        return 0 < self.start < other.end and 0 < other.start < self.end

    def covers(self, other: _Use) -> bool:
        return 0 < self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class _PlacedLaunch:
    """A launch of the sequence."""

    row: int
    kernel: str
    stream: int
    uses: tuple[_Use, ...]
    failed: bool
    changed: tuple[int, ...]

    def __str__(self) -> str:
        return f"row {self.row}, {self.kernel},"


@dataclass(frozen=True)
class Pairs:
    """The pairs of a record, those without a problem first, then by the bytes that a fused kernel saves.

    unread: why a kernel could not be read, by its name. Its launches count as reading and writing all their arrays.
    """

    found: tuple[Pair, ...]
    unread: Mapping[str, str]


def pairs(capture: Capture) -> Pairs:
    """Finds all pairs of a record. Loads the kernels of the recorded sequences.

    Raises RequestError if the record has launches, but not their order.
    """
    if capture.launches() and not any(part.sequence for part in capture.parts):
        raise RequestError(
            "the record has no order of launches: an earlier version wrote it; capture the program again"
        )
    unread: dict[str, str] = {}
    rows = {kind_of(recorded.launch): row for row, recorded in enumerate(capture.launches(), 1)}
    merged: dict[tuple[int, int, str, str], Pair] = {}
    for part in capture.parts:
        for pair in _of_process(part, [rows[kind_of(recorded.launch)] for recorded in part.launches], unread):
            key = pair.producer, pair.consumer, pair.written, pair.read
            before = merged.get(key, replace(pair, times=0))
            merged[key] = replace(before, times=pair.times + before.times, problem=before.problem or pair.problem)
    found = sorted(merged.values(), key=lambda pair: (bool(pair.problem), -pair.saved_bytes))
    return Pairs(tuple(found), unread)


def _of_process(part: ProcessRecord, rows: list[int], unread: dict[str, str]) -> Iterator[Pair]:
    if not part.shares_arrays:
        return
    if not _is_whole(part):
        raise RequestError("the record's order of launches is damaged; capture the program again")
    used = sorted({step.kind for step in part.sequence})
    touched = {kind: _touched(part.launches[kind].launch, unread) for kind in used}
    steps = [_step(part, launch, rows, touched[launch.kind]) for launch in part.sequence]
    found: dict[tuple[int, int, str, str], list[int]] = {}
    for place, (one, other) in enumerate(pairwise(steps)):
        for output, argument in _handed_over(one, other):
            key = one.row, other.row, output.argument.name, argument.argument.name
            found.setdefault(key, []).append(place)
    for (producer, consumer, written, read), places in found.items():
        index = next(at for at, use in enumerate(steps[places[0]].uses) if use.argument.name == written)
        nbytes = steps[places[0]].uses[index].argument.spec.nbytes
        alone = sum(step.row == producer for step in steps) - len(places) - (steps[-1].row == producer)
        problem = f"{alone} of its launches are not followed by row {consumer}" if alone else ""
        for place in places:
            problem = problem or _problem(steps, place, index, read)
        first, second = part.sequence[places[0] : places[0] + 2]
        addresses = first.addresses, second.addresses
        yield Pair(producer, consumer, written, read, nbytes, len(places), addresses, problem)


def _is_whole(part: ProcessRecord) -> bool:
    """Returns whether each launch of the sequence has a kind, an address for each array, and known changed arrays."""
    counts = [len(each.launch.arrays()) for each in part.launches]
    before = 0
    for step in part.sequence:
        if not 0 <= step.kind < len(counts) or len(step.addresses) != counts[step.kind]:
            return False
        if not all(0 <= at < before for at in step.changed):
            return False
        before = len(step.addresses)
    return True


def _touched(launch: DescribedLaunch, unread: dict[str, str]) -> tuple[tuple[bool, bool], ...]:
    """Returns, for each array, whether the launch reads it, and whether it writes it. Both, if this is not known."""
    arrays = launch.arrays()
    try:
        known = accesses(launch)
    except TilewrightError as error:
        unread[launch.kernel] = str(error)
        return ((True, True),) * len(arrays)
    return tuple((array.name in known.read, array.name in known.written) for array in named(launch).arrays())


def _step(
    part: ProcessRecord, launch: OrderedLaunch, rows: list[int], touched: tuple[tuple[bool, bool], ...]
) -> _PlacedLaunch:
    recorded = part.launches[launch.kind]
    uses = (
        _Use(argument, start, start + extent_bytes(argument.spec), *how)
        for argument, start, how in zip(recorded.launch.arrays(), launch.addresses, touched, strict=True)
    )
    kernel = recorded.launch.kernel
    return _PlacedLaunch(rows[launch.kind], kernel, launch.stream, tuple(uses), bool(recorded.failed), launch.changed)


def _handed_over(one: _PlacedLaunch, other: _PlacedLaunch) -> Iterator[tuple[_Use, _Use]]:
    """Yields the arrays that one launch only writes and the other only reads, with their uses in both."""
    if one.stream == other.stream:
        for written in (use for use in one.uses if use.is_written and not use.is_read and use.start):
            for read in (use for use in other.uses if use.is_read and not use.is_written):
                if (written.start, written.end) == (read.start, read.end):
                    yield written, read


def _problem(steps: list[_PlacedLaunch], place: int, index: int, read: str) -> str:
    """Returns why the launch at ``place`` must not be fused with the next one; empty if no launch shows a reason.

    index: the place of the intermediate array among the arrays of the launch. read: its name in the next launch.
    """
    producer, consumer = steps[place : place + 2]
    whole = producer.uses[index]
    inputs = [use for use in producer.uses if use.is_read]
    if producer.failed or consumer.failed:
        return "a launch failed"
    if others := [use.argument.name for use in producer.uses if use.is_written and use is not whole]:
        return f"{producer} also writes '{others[0]}'"
    for at in consumer.changed:
        if producer.uses[at] is whole or producer.uses[at].is_read:
            return f"torch changes '{producer.uses[at].argument.name}' in place between the two launches"
    for use in consumer.uses:
        if use.is_written and any(use.overlaps(array) for array in inputs):
            return f"{consumer} writes '{use.argument.name}' over an input of {producer.kernel}"
        if use.overlaps(whole) and use.argument.name != read:
            return f"{consumer} also gets it as '{use.argument.name}'"
    for later in steps[place + 2 :]:
        uses = [use for use in later.uses if use.overlaps(whole)]
        if any(use.is_read for use in uses):
            return f"{later} reads it again"
        if any(use.is_written and use.covers(whole) for use in uses):
            return ""
    return ""
