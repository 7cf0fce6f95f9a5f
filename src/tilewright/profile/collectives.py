"""Reads the communication in traces of one or more ranks: what is exposed, which rank the others wait for, and small
messages.

A communication kernel runs on every rank until the last rank has arrived and the data are there. So the differences
between the durations of one collective on the ranks are the times that ranks waited for the last one. This needs no
common clock. Since torch 2.2, traces have the size of each message.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.profile import intervals
from tilewright.profile import thresholds as limits
from tilewright.profile.figures import Figure, ProfileFinding, percent
from tilewright.profile.findings import level
from tilewright.profile.json_stream import CHUNK, EventPlace, opened
from tilewright.profile.kinds import KINDS
from tilewright.profile.sources import Sources
from tilewright.profile.split import busy_with, within_steps
from tilewright.profile.trace import Events, KinetoTrace, read
from tilewright.progress import Progress, silent

OPERATIONS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "broadcast": "broadcast", "sendrecv": "send or receive", "reduce": "reduce",
}  # fmt: skip
"""Part of a name, in lower case without underscores → the collective."""
DTYPE_BYTES = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Names of types in traces, in lower case → bytes."""


@dataclass(frozen=True)
class CollectiveRow:
    """All collectives of one kind on one rank. Times in µs are unions. ``exposed_us``: while nothing computes.

    bytes: the sum of their messages; None if the trace has no sizes.
    """

    rank: int
    operation: str
    count: int
    bytes: int | None
    total_us: float
    exposed_us: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class RankCommunication:
    """The communication of one rank. ``time_us``: from its first activity to the end of the last. ``waited_us``: how
    long its collectives waited for the last rank; None if the collectives of the ranks do not match."""

    rank: int
    trace: str
    digest: str
    time_us: float
    communication_us: float
    exposed_us: float
    waited_us: float | None

    @property
    def hidden(self) -> float | None:
        """The overlap efficiency: the share of the communication during which something computes."""
        return 1.0 - self.exposed_us / self.communication_us if self.communication_us else None


@dataclass(frozen=True)
class ProgramMessage:
    """A collective with messages of this size, and how often one rank makes it."""

    collective: str
    bytes: int
    count: int


@dataclass(frozen=True)
class Communication:
    """The communication of a program. ``messages``: those of the first rank. ``note``: why ranks could not be compared;
    "" if they were."""

    ranks: tuple[RankCommunication, ...]
    rows: tuple[CollectiveRow, ...]
    messages: tuple[ProgramMessage, ...]
    findings: tuple[ProfileFinding, ...]
    note: str


def communication(
    paths: Sequence[Path | str], *, steps: tuple[int, int] | None = None, progress: Progress = silent
) -> Communication:
    """Returns the communication in the traces of the ranks of one program; one trace may be that of one rank.

    steps: a pair (first, end). Only the steps from ``first`` to before ``end`` are used, if all traces have them.
    Raises RequestError if a file cannot be read, or is not a trace with activities of a GPU.
    """
    traces = [read(Path(path), progress) for path in paths]
    if steps:
        within = [within_steps(trace, *steps) for trace in traces]
        traces = [each for each in within if each is not None] if None not in within else traces
    read_ranks = [_Rank(trace, number) for number, trace in enumerate(traces)]
    ranks = sorted((each for each in read_ranks if len(each.table)), key=lambda each: each.number)
    waits, note = _waits(ranks)
    found = tuple(
        RankCommunication(
            each.number,
            each.trace.path.name,
            each.trace.digest,
            each.span / 1e3,
            each.busy / 1e3,
            each.exposed / 1e3,
            None if waits is None else float(waits[at].sum()) / 1e3,
        )
        for at, each in enumerate(ranks)
    )
    findings = [*_exposed(found), *_small(ranks)]
    if waits is not None:
        findings += _straggler(ranks, waits)
    sizes = Counter(each for each in ranks[0].messages() if each[1]) if ranks else Counter[tuple[str, int]]()
    messages = tuple(ProgramMessage(*each, count) for each, count in sizes.items())
    return Communication(
        found, tuple(row for each in ranks for row in each.rows()), messages,
        tuple(sorted(findings, key=lambda each: -each.impact)), note,
    )  # fmt: skip


class _Rank:
    """One trace, with the collectives of its GPU in order."""

    def __init__(self, trace: KinetoTrace, number: int) -> None:
        self.trace, self.sources = trace, Sources(trace.path)
        self.number = number if trace.rank is None else trace.rank
        every = trace.activities.where(trace.activities.end > trace.activities.start)
        wire = every.kind == KINDS.index("communication")
        self.device = int(every.device[wire][0]) if wire.any() else 0
        mine = every.where(every.device == self.device)
        self.table = mine.where(mine.kind == KINDS.index("communication"))
        self.computing = busy_with(mine, "compute")
        self.span = int(mine.end.max() - mine.start.min()) if len(mine) else 0
        self.facts = _facts(trace.path, self.table)
        self.operation = [_operation(fact, self.table.name_of(at)) for at, fact in enumerate(self.facts)]
        self.size = [_bytes(fact, name) for fact, name in zip(self.facts, self.operation, strict=True)]
        union = intervals.union(self.table.start, self.table.end)
        self.busy = intervals.total(union)
        self.exposed = intervals.total(intervals.without(union, self.computing))

    @property
    def id(self) -> str:
        return self.trace.digest[:8]

    @property
    def lasted(self) -> NDArray[np.int64]:
        return self.table.end - self.table.start

    def messages(self) -> Iterator[tuple[str, int]]:
        """Yields each collective with the bytes of its message; 0 if they are unknown."""
        yield from zip(self.operation, (size or 0 for size in self.size), strict=True)

    def rows(self) -> Iterator[CollectiveRow]:
        for name in dict.fromkeys(self.operation):
            chosen = np.array([each == name for each in self.operation], bool)
            times = intervals.union(self.table.start[chosen], self.table.end[chosen])
            sizes = [size for size, mine in zip(self.size, chosen, strict=True) if mine]
            known = None if None in sizes else sum(size or 0 for size in sizes)
            exposed = intervals.total(intervals.without(times, self.computing))
            lines = self.cited(chosen)
            count = int(chosen.sum())
            yield CollectiveRow(self.number, name, count, known, intervals.total(times) / 1e3, exposed / 1e3, lines)

    def cited(self, chosen: NDArray[np.bool_]) -> tuple[str, ...]:
        """Returns where the trace has the first and the longest of the chosen collectives."""
        rows = np.flatnonzero(chosen)
        longest = rows[np.argmax(self.lasted[rows])]
        return self.sources.cite(*(self.table.place(int(row)) for row in (rows[0], longest)))


def _facts(path: Path, table: Events) -> list[Mapping[str, Any]]:
    """Reads the arguments of each event of a table, in one pass over the file."""
    places = [table.place(at) for at in range(len(table))]
    found: dict[EventPlace, Mapping[str, Any]] = {}
    at = 0
    with opened(path) as (_, file):
        for place in sorted(places, key=lambda each: each.offset):
            while at < place.offset:
                at += len(file.read(min(CHUNK, place.offset - at)))
            text = file.read(place.length)
            at += len(text)
            try:
                args = json.loads(text).get("args", {})
            except ValueError:
                args = {}
            found[place] = args if isinstance(args, dict) else {}
    return [found[place] for place in places]


def _operation(facts: Mapping[str, Any], kernel: str) -> str:
    for name in (str(facts.get("Collective name", "")), kernel):
        plain = re.sub(r"[_\W]", "", name.lower())
        if found := next((operation for part, operation in OPERATIONS.items() if part in plain), ""):
            return found
    return "other communication"


def _bytes(facts: Mapping[str, Any], operation: str) -> int | None:
    """Returns the bytes of a message: of the output of an all-gather, else of the input; None if unknown."""
    elements = facts.get("Out msg nelems" if operation == "all_gather" else "In msg nelems")
    width = DTYPE_BYTES.get(str(facts.get("dtype", "")).lower())
    return elements * width if type(elements) is int and elements >= 0 and width else None


def _waits(ranks: Sequence[_Rank]) -> tuple[NDArray[np.int64] | None, str]:
    """Returns how long each collective waited on each rank, shape (ranks, collectives), in ns; or why it is unknown."""
    if len(ranks) < 2:
        return None, "one rank alone does not show which rank the others wait for: give the traces of all ranks"
    if len({each.number for each in ranks}) < len(ranks):
        return None, "two traces are of the same rank, so ranks were not compared"
    if any(each.operation != ranks[0].operation for each in ranks):
        return None, "the ranks have different collectives, so they were not compared: record the same steps on each"
    lasted = np.stack([each.lasted for each in ranks])
    return lasted - lasted.min(axis=0), ""


def _exposed(ranks: Iterable[RankCommunication]) -> Iterator[ProfileFinding]:
    for each in ranks:
        share = each.exposed_us / each.time_us if each.time_us else 0.0
        if share > limits.COMMUNICATION.limit:
            how = "communication while nothing computes, over the time of the trace"
            yield _finding(
                f"{each.digest[:8]}-exposed-communication-gpu{each.rank}", "exposed-communication", share,
                f"rank {each.rank} communicates for {percent(share)} of its time while nothing computes",
                (Figure(name="exposed communication", value=share, unit="share", how=how),), str(limits.COMMUNICATION),
                "start communication earlier: buckets in the backward pass (DDP), prefetch (FSDP)",
            )  # fmt: skip


def _small(ranks: Iterable[_Rank]) -> Iterator[ProfileFinding]:
    most = limits.SMALL_MESSAGE_KIB.limit * 1024
    for each in ranks:
        small = np.array([size is not None and size < most for size in each.size], bool)
        if small.sum() < 2:
            continue
        taken = intervals.total(intervals.union(each.table.start[small], each.table.end[small]))
        share = taken / each.busy
        if share > limits.SMALL_MESSAGES.limit:
            how = "union of the collectives with small messages, over the time of communication"
            figure = Figure(name="small messages", value=share, unit="share", how=how, lines=each.cited(small))
            yield _finding(
                f"{each.id}-small-messages-gpu{each.number}", "small-messages", taken / each.span,
                f"{int(small.sum())} of {len(small)} collectives of rank {each.number} have less than "
                f"{limits.SMALL_MESSAGE_KIB.limit:g} KiB, and take {percent(share)} of the time of communication",
                (figure,), f"{limits.SMALL_MESSAGE_KIB}; {limits.SMALL_MESSAGES}",
                "send them together: one flat buffer, a larger bucket_cap_mb, or a coalesced collective",
            )  # fmt: skip


def _straggler(ranks: Sequence[_Rank], waits: NDArray[np.int64]) -> Iterator[ProfileFinding]:
    """Yields the rank for which the others wait, if they wait long. It is the one that waits least."""
    waited = waits.sum(axis=1)
    last, longest = int(np.argmin(waited)), int(np.argmax(waited))
    slow, other = ranks[last], ranks[longest]
    share = float(waited[longest]) / other.busy
    if share <= limits.WAITING_RANKS.limit:
        return
    how = "how much longer collectives take on this rank than on the rank where they are shortest"
    figure = Figure(name="waited for other ranks", value=share, unit="share", how=how)
    many = int((waits[last] == 0).sum())
    yield _finding(
        f"{slow.id}-straggler-gpu{slow.number}", "straggler", float(waited[longest]) / other.span,
        f"rank {other.number} waits for other ranks in {percent(share)} of its communication; rank {slow.number} "
        f"arrives last at {many} of {waits.shape[1]} collectives",
        (figure,), str(limits.WAITING_RANKS),
        f"look at what rank {slow.number} does more: its data, its host, its GPU's clock",
    )  # fmt: skip


def _finding(
    id: str, kind: str, impact: float, text: str, evidence: tuple[Figure, ...], threshold: str, advice: str
) -> ProfileFinding:
    return ProfileFinding(
        id=id, kind=kind, level=level(impact), impact=impact, text=text, evidence=evidence, threshold=threshold,
        advice=advice, specialist="distributed", tag="parallelism",
    )  # fmt: skip
