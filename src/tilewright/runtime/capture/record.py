"""The record of a program's launches, a file. Each process writes a part, and the parts are merged.

A part is replaced as a whole (written beside, then renamed) every few seconds and at the end, so a program that
crashes leaves what it recorded until then. Format: JSON, see `ProcessRecord` and `Capture`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import TypeVar

from tilewright.errors import RequestError
from tilewright.ledger import codec
from tilewright.runtime.capture.data import remove_all_but
from tilewright.runtime.capture.described import Argument, DescribedLaunch

VERSION = 1
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Times:
    """Samples of a time in microseconds."""

    samples: int = 0
    total_us: float = 0.0

    @property
    def mean_us(self) -> float | None:
        return self.total_us / self.samples if self.samples else None

    def __add__(self, other: Times) -> Times:
        return Times(self.samples + other.samples, self.total_us + other.total_us)


@dataclass(frozen=True)
class Recorded:
    """One kind of launch: how often it was made, and how long it took."""

    launch: DescribedLaunch
    count: int
    in_graph: int = 0
    """How many of ``count`` were recorded into a CUDA graph; its replays are not counted."""
    failed: int = 0
    error: str = ""
    """The first error of a launch that failed."""
    busy: Times = Times()
    """On a GPU that had work when the launch was made: the kernel alone."""
    idle: Times = Times()
    """On an idle GPU: includes the way of the launch to the GPU, so the kernel takes at most this."""
    host: Times = Times()
    """Of the call of `ct.launch`, without the first, which compiles."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Array → file with its elements, beside the record."""
    others: int = 0
    """Launches of further kinds of this kernel, which are not described."""
    estimated: int = 0
    """How many of ``count`` were not looked at: launches of this kernel, assigned to its kinds (`kinds`)."""

    def __add__(self, other: Recorded) -> Recorded:
        added_up = ("count", "in_graph", "failed", "busy", "idle", "host", "others", "estimated")
        sums = {name: getattr(self, name) + getattr(other, name) for name in added_up}
        return replace(self, error=self.error or other.error, data={**other.data, **self.data}, **sums)

    @property
    def gpu(self) -> Times:
        """The samples for the mean: those of an idle GPU are ignored if there are three of a busy one."""
        return self.busy if self.busy.samples >= 3 or not self.idle.samples else self.idle

    @property
    def at_most(self) -> bool:
        """Whether the mean includes more than the kernel."""
        return self.gpu is not self.busy

    @property
    def launched(self) -> int:
        """Launches that ran on the GPU directly, without a graph."""
        return self.count - self.in_graph - self.failed

    @property
    def total_us(self) -> float | None:
        mean = self.gpu.mean_us
        return None if mean is None else mean * self.launched


@dataclass(frozen=True)
class ProcessRecord:
    """The launches of one process."""

    pid: int
    program: tuple[str, ...]
    folder: str
    """The working directory of the program."""
    gpu: str
    seconds: float
    """Wall time from the first import of cuda.tile."""
    finished: bool
    """Whether the process ended regularly; the part of a crashed one has the launches until then."""
    launches: tuple[Recorded, ...]


@dataclass(frozen=True)
class Capture:
    """A record: the launches of all processes, the longest total time first."""

    version: int
    parts: tuple[ProcessRecord, ...]

    def launches(self) -> tuple[Recorded, ...]:
        """With equal launches of several processes added up."""
        kinds: dict[str, Recorded] = {}
        for recorded in (recorded for part in self.parts for recorded in part.launches):
            key = _kind(recorded.launch)
            kinds[key] = kinds[key] + recorded if key in kinds else recorded
        return tuple(sorted(kinds.values(), key=lambda one: (-(one.total_us or 0.0), -one.count)))


def _kind(launch: DescribedLaunch) -> str:
    """Equal for launches of one kind in every process: the addresses of their arrays count modulo 16."""

    def aligned(array: Argument) -> Argument:
        return replace(array, array=replace(array.spec, address_offset=array.spec.address_offset % 16))

    return json.dumps(launch.with_arrays(aligned).to_json(), sort_keys=True)


def part_file(path: Path, process: str) -> Path:
    """process: a name that no other process has."""
    return path.with_name(f"{path.name}.{process}.part")


def parts_of(path: Path) -> list[Path]:
    """The parts that processes left beside ``path``."""
    return sorted(path.parent.glob(f"{escape(path.name)}.*.part"))


def remove_parts(path: Path) -> None:
    """Also those that a killed process wrote only half."""
    for file in path.parent.glob(f"{escape(path.name)}.*.part*"):
        file.unlink(missing_ok=True)


def write(path: Path, value: ProcessRecord | Capture) -> None:
    """As JSON, all or nothing."""
    beside = path.with_name(f"{path.name}.writing.{os.getpid()}")
    beside.write_text(json.dumps(codec.to_json(value), allow_nan=False), encoding="utf-8")
    os.replace(beside, path)


def merged(path: Path) -> Capture:
    """Merges the parts beside ``path`` into the record there, and removes them. It replaces an earlier record and its
    data, but not if it has no launches."""
    capture = Capture(VERSION, tuple(_read(file, ProcessRecord) for file in parts_of(path)))
    if capture.launches() or not is_there(path):
        write(path, capture)
        named = {file for part in capture.parts for recorded in part.launches for file in recorded.data.values()}
        remove_all_but(named, path)
    remove_parts(path)
    return capture


def is_there(path: Path) -> bool:
    """Whether there is a record at ``path``; an empty file does not count."""
    return path.is_file() and path.stat().st_size > 0


def read(path: Path) -> Capture:
    """The record at ``path``. Raises RequestError if there is none, or if the file is not a record."""
    if not path.is_file():
        raise RequestError(f"no record {path}; make one: tilewright capture --out {path} -- python program.py")
    return _read(path, Capture)


def _read(path: Path, kind: type[Kind]) -> Kind:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if kind is Capture and isinstance(data, dict) and data.get("version") != VERSION:
            raise ValueError(f"version {data.get('version')}, this Tilewright reads {VERSION}")
        return codec.from_json(kind, data, defaults=True)
    except (OSError, RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise RequestError(f"{path} is no record of tilewright capture: {why}") from None


def chosen(capture: Capture, number: int) -> Recorded:
    """The launch with a number of the table, from 1."""
    launches = capture.launches()
    if not 1 <= number <= len(launches):
        raise RequestError(f"no launch {number}; the record has 1 to {len(launches)}")
    return launches[number - 1]


def programs(parts: Iterable[ProcessRecord]) -> str:
    """Each command line once, without the workers that `multiprocessing` started."""
    every = list(dict.fromkeys(" ".join(part.program) for part in parts))
    return ", ".join([program for program in every if " -c from multiprocessing." not in program] or every)
