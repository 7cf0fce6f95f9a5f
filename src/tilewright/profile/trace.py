"""Reads a trace: the activities of the GPUs, the host's calls that launched them, and the steps.

Times are whole nanoseconds. An activity and the call that launched it have the same correlation id. All activities of a
CUDA graph have the correlation id of the call that launched the graph.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import RequestError
from tilewright.profile.json_stream import RECORD, EventPlace, JsonStream, as_text, nanoseconds, number
from tilewright.profile.kinds import CATEGORIES, KINDS, STEP, kind_of
from tilewright.progress import Progress, silent

NONE = -1
"""The value of a field that an event lacks."""
NO_OTHERS = (NONE,) * 4


class Events:
    """Events of one sort, as columns sorted by start. ``name`` and ``kind`` are indices into `names` and
    `kinds.KINDS`."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    correlation: NDArray[np.int64]
    name: NDArray[np.int64]
    kind: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    graph: NDArray[np.int64]
    """Number of the CUDA graph; 0 or `NONE` for events outside of graphs."""
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    line: NDArray[np.int64]
    column: NDArray[np.int64]

    PLACE = ("offset", "length", "line", "column")
    COLUMNS = ("start", "end", "correlation", "name", "kind", "device", "stream", "graph", *PLACE)

    def __init__(self, columns: Mapping[str, NDArray[np.int64]], names: list[str]):
        order = np.argsort(columns["start"], kind="stable")
        for column in self.COLUMNS:
            setattr(self, column, columns[column][order])
        self.names = names

    def __len__(self) -> int:
        return len(self.start)

    def where(self, chosen: NDArray[Any]) -> Events:
        """Returns the events chosen by a mask or by indices."""
        return Events({column: getattr(self, column)[chosen] for column in self.COLUMNS}, self.names)

    def place(self, index: int) -> EventPlace:
        return EventPlace(*(int(getattr(self, column)[index]) for column in self.PLACE))

    def name_of(self, index: int) -> str:
        return self.names[int(self.name[index])]


class _GrowingEvents:
    """Collects rows for an `Events` table while the trace is being read."""

    def __init__(self) -> None:
        self.rows = array("q")
        self.names: dict[str, int] = {}

    def add(self, place: EventPlace, name: str, start: int, end: int, correlation: int, *others: int) -> None:
        """Adds an event. ``others``: kind, device, stream and graph; omitted for calls of the host."""
        named = self.names.setdefault(name, len(self.names))
        self.rows.extend((start, end, correlation, named, *(others or NO_OTHERS), *place))

    def events(self) -> Events:
        rows = np.array(self.rows, np.int64).reshape(-1, len(Events.COLUMNS))
        return Events({name: rows[:, n] for n, name in enumerate(Events.COLUMNS)}, list(self.names))


@dataclass(frozen=True)
class ProfilerStep:
    """One step of the profiler (``ProfilerStep#N``), on the host."""

    number: int
    start: int
    end: int
    place: EventPlace


@dataclass(frozen=True)
class Counted:
    """The hardware counters of one range of kernels. The value of a counter is None if the trace has NaN."""

    name: str
    counters: Mapping[str, float | None]
    place: EventPlace


@dataclass(frozen=True)
class KinetoTrace:
    """One trace: of one process, with all GPUs that it used."""

    path: Path
    digest: str
    activities: Events
    calls: Events
    steps: tuple[ProfilerStep, ...]
    counted: tuple[Counted, ...]
    boards: Mapping[int, str]
    """The names of the GPUs, by number."""
    rank: int | None
    events: int
    """The number of all events, including skipped events."""

    def devices(self) -> Iterator[int]:
        yield from map(int, np.unique(self.activities.device))


def read(path: Path, progress: Progress = silent) -> KinetoTrace:
    """Reads a trace. Raises RequestError if the file is not a trace, is incomplete, or has no activity of a GPU."""
    reader = _TraceReader(JsonStream(path, progress))
    trace = reader.read()
    if len(trace.activities):
        return trace
    if reader.unusable:
        raise RequestError(
            f"{path}: none of its {reader.unusable} GPU events has a time (ts, dur) in µs; "
            f"it is not as torch.profiler writes it, {RECORD}"
        )
    seen = ", ".join(sorted(reader.categories)) or "none"
    raise RequestError(
        f"{path} has no activity of a GPU ({trace.events} events; categories: {seen}); "
        "profile with ProfilerActivity.CUDA on a machine with a GPU"
    )


class _TraceReader:
    """Reads one trace.

    unusable: the number of GPU events without a time.
    """

    def __init__(self, stream: JsonStream):
        self.stream = stream
        self.categories: set[str] = set()
        self.unusable = 0
        self.activities, self.calls = _GrowingEvents(), _GrowingEvents()
        self.steps: list[ProfilerStep] = []
        self.counted: list[Counted] = []

    def read(self) -> KinetoTrace:
        events = 0
        for place, event in self.stream:
            events += 1
            if isinstance(event, dict):
                self._event(place, event)
        head = self.stream.head
        rank = _field(head, "distributedInfo").get("rank")
        return KinetoTrace(
            path=self.stream.path,
            digest=self.stream.digest,
            activities=self.activities.events(),
            calls=self.calls.events(),
            steps=tuple(sorted(self.steps, key=lambda step: step.start)),
            counted=tuple(self.counted),
            boards=_boards(head.get("deviceProperties")),
            rank=rank if isinstance(rank, int) else None,
            events=events,
        )

    def _event(self, place: EventPlace, event: dict[str, Any]) -> None:
        category = str(event.get("cat", "")).lower()
        sort = CATEGORIES.get(category)
        if sort is None or event.get("ph", "X") != "X":
            if category:
                self.categories.add(category)
            return
        self.categories.add(category)
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is None or duration is None or duration < 0:
            self.unusable += sort in ("kernel", "copy")
            return
        name, args = as_text(event.get("name", "")), _field(event, "args")
        if sort == "call":
            self.calls.add(place, name, start, start + duration, _whole(args.get("correlation")))
        elif sort == "annotation":
            if found := STEP.fullmatch(name):
                self.steps.append(ProfilerStep(int(found[1]), start, start + duration, place))
        elif sort == "counters":
            counters = {as_text(key): number(value) for key, value in args.items() if "__" in key}
            self.counted.append(Counted(name, counters, place))
        else:
            device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
            others = (
                KINDS.index(kind_of(sort, name)),
                max(0, _whole(device)),
                _whole(stream),
                _whole(args.get("graph id")),
            )
            self.activities.add(place, name, start, start + duration, _whole(args.get("correlation")), *others)


def _field(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a field that should be an object. Returns an empty object for any other value."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int:
    if type(value) is int and abs(value) < 2**62:
        return value
    found = number(value.removeprefix("stream ") if isinstance(value, str) else value)
    return NONE if found is None or abs(found) >= 2**62 else int(found)


def _boards(properties: object) -> dict[int, str]:
    listed = properties if isinstance(properties, list) else []
    known = (each for each in listed if isinstance(each, dict) and isinstance(each.get("id"), int))
    return {each["id"]: as_text(each.get("name", "")) for each in known}
