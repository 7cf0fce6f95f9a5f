"""Reads and writes the record of a program's launches. Each process writes a part file; `merged` joins the parts.

A part is rewritten as a whole every few seconds and at the end. So the part of a program that crashes ends at the last
write. The format is JSON, see `ProcessRecord` and `Capture`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from tilewright.errors import RequestError
from tilewright.ledger import codec
from tilewright.runtime.capture.data import remove_all_but
from tilewright.runtime.capture.described import Argument, DescribedLaunch
from tilewright.runtime.capture.program_call import ProgramCall

VERSION = 1
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Times:
    """The number and the sum of samples of a time, in microseconds."""

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
    """The number of launches in ``count`` that were captured into a CUDA graph. Replays of the graph are not
    counted."""
    failed: int = 0
    error: str = ""
    """The first error of a failed launch."""
    busy: Times = Times()
    """Samples of launches made while the GPU had other work. They are the time of the kernel alone."""
    idle: Times = Times()
    """Samples of launches made while the GPU was idle. They include the launch overhead, so they are an upper bound."""
    host: Times = Times()
    """Samples of the host time of `ct.launch`, except the first launch, which compiles."""
    data: Mapping[str, str] = field(default_factory=dict)
    """The file with the elements of each stored array, by name."""
    others: int = 0
    """The number of launches of other kinds of this kernel, which are not described."""
    estimated: int = 0
    """The number of launches in ``count`` that were not examined, but assigned to this kind in proportion (see
    `kinds`)."""
    call: ProgramCall | None = None
    """Where the program made the first launch of this kind."""

    def __add__(self, other: Recorded) -> Recorded:
        added_up = ("count", "in_graph", "failed", "busy", "idle", "host", "others", "estimated")
        sums = {name: getattr(self, name) + getattr(other, name) for name in added_up}
        return replace(self, error=self.error or other.error, data={**other.data, **self.data}, **sums)

    @property
    def gpu(self) -> Times:
        """The samples for the mean: `busy` with at least three samples, or if `idle` has no sample; else `idle`."""
        return self.busy if self.busy.samples >= 3 or not self.idle.samples else self.idle

    @property
    def at_most(self) -> bool:
        """Whether the mean is only an upper bound of the kernel's time."""
        return self.gpu is not self.busy

    @property
    def launched(self) -> int:
        """The number of launches that ran on the GPU directly, without a graph."""
        return self.count - self.in_graph - self.failed

    @property
    def total_us(self) -> float | None:
        mean = self.gpu.mean_us
        return None if mean is None else mean * self.launched


@dataclass(frozen=True)
class OrderedLaunch:
    """One of a process's first launches, in the order in which the program made them."""

    kind: int
    """The place of the launch's kind in `ProcessRecord.launches`."""
    stream: int
    """The handle of the CUDA stream."""
    addresses: tuple[int, ...]
    """The address of each array, in the order of `DescribedLaunch.arrays`; 0 for an array without memory."""
    changed: tuple[int, ...] = ()
    """The arrays of the launch before that torch has changed in place since, by their places in that launch."""

    def shares_array(self, other: OrderedLaunch) -> bool:
        """Returns whether both get an array with the same address, on the same stream."""
        return self.stream == other.stream and bool({*self.addresses} & {*other.addresses} - {0})


@dataclass(frozen=True)
class ProcessRecord:
    """The launches of one process."""

    pid: int
    program: tuple[str, ...]
    folder: str
    """The program's working directory."""
    gpu: str
    seconds: float
    """Wall time since the first import of cuda.tile, in seconds."""
    finished: bool
    """Whether the process ended normally. If the process crashed, the part has the launches until the last write."""
    launches: tuple[Recorded, ...]
    sequence: tuple[OrderedLaunch, ...] = ()
    """The first launches, without gaps (see `sequence`)."""

    @property
    def shares_arrays(self) -> bool:
        """Whether some launch gets an array of the launch directly before it."""
        return any(one.shares_array(other) for one, other in pairwise(self.sequence))


@dataclass(frozen=True)
class Capture:
    """The whole record: one part for each process."""

    version: int
    parts: tuple[ProcessRecord, ...]

    @property
    def shares_arrays(self) -> bool:
        """Whether some launch gets an array of the launch directly before it."""
        return any(part.shares_arrays for part in self.parts)

    def launches(self) -> tuple[Recorded, ...]:
        """Returns the kinds of launch, summed over all processes, the longest total time first."""
        kinds: dict[str, Recorded] = {}
        for recorded in (recorded for part in self.parts for recorded in part.launches):
            key = kind_of(recorded.launch)
            kinds[key] = kinds[key] + recorded if key in kinds else recorded
        return tuple(sorted(kinds.values(), key=lambda recorded: (-(recorded.total_us or 0.0), -recorded.count)))


def kind_of(launch: DescribedLaunch) -> str:
    """Returns a key that is equal for launches of one kind in all processes. Addresses of arrays count modulo 16."""

    def aligned(array: Argument) -> Argument:
        return replace(array, array=array.spec.as_compiled())

    return json.dumps(launch.with_arrays(aligned).to_json(), sort_keys=True)


def part_file(path: Path, process: str) -> Path:
    """Returns the part file of a process. process: a name that no other process has."""
    return path.with_name(f"{path.name}.{process}.part")


def parts_of(path: Path) -> list[Path]:
    """Returns the part files that processes left beside ``path``."""
    return sorted(path.parent.glob(f"{escape(path.name)}.*.part"))


def remove_parts(path: Path) -> None:
    """Removes the part files beside ``path``, also the incomplete files of killed processes."""
    for file in path.parent.glob(f"{escape(path.name)}.*.part*"):
        file.unlink(missing_ok=True)


def write(path: Path, value: ProcessRecord | Capture) -> None:
    """Writes JSON to a temporary file and renames it, so that a reader never sees half a file."""
    beside = path.with_name(f"{path.name}.writing.{os.getpid()}")
    beside.write_text(json.dumps(codec.to_json(value), allow_nan=False), encoding="utf-8")
    os.replace(beside, path)


def merged(path: Path) -> Capture:
    """Merges the part files into a record at ``path``, and removes them. Without launches, an earlier record stays."""
    capture = Capture(VERSION, tuple(_read(file, ProcessRecord) for file in parts_of(path)))
    if capture.launches() or not is_there(path):
        write(path, capture)
        remove_all_but({file for part in capture.parts for kind in part.launches for file in kind.data.values()}, path)
    remove_parts(path)
    return capture


def is_there(path: Path) -> bool:
    """Returns whether there is a record at ``path``. An empty file does not count."""
    return path.is_file() and path.stat().st_size > 0


def read(path: Path) -> Capture:
    """Reads the record at ``path``. Raises RequestError if there is none, or if the file is not a record."""
    if not path.is_file():
        raise RequestError(f"no record {path}; make one: tilewright capture --out {path} -- python program.py")
    return _read(path, Capture)


def _read(path: Path, kind: type[Kind]) -> Kind:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if kind is Capture and isinstance(data, dict) and (version := data.get("version")) != VERSION:
            if version is None:
                raise ValueError("it has no version")
            raise RequestError(
                f"{path} is a record of another version of Tilewright (version {version}, this one reads {VERSION}), "
                "so the program must be captured again"
            )
        return codec.from_json(kind, data, defaults=True)
    except (OSError, RecursionError, ValueError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise RequestError(f"{path} is not a record of tilewright capture: {why}") from None


def chosen(capture: Capture, number: int) -> Recorded:
    """Returns the launch in row ``number`` of the table, from 1. Raises RequestError if there is no such row."""
    launches = capture.launches()
    if not launches:
        raise RequestError(f"no launch {number}; no launch of a cuTile or Triton kernel was recorded")
    if not 1 <= number <= len(launches):
        raise RequestError(f"no launch {number}; the record has 1 to {len(launches)}")
    return launches[number - 1]


def programs(parts: Iterable[ProcessRecord]) -> str:
    """Returns all command lines as text, each once, without the workers that `multiprocessing` started."""
    every = list(dict.fromkeys(" ".join(part.program) for part in parts))
    return ", ".join([program for program in every if " -c from multiprocessing." not in program] or every)
