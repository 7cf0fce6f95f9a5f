"""What a program launched, as a file: each process writes its own part, and the parts make one record.

A part is replaced as a whole (written beside, then renamed), every few seconds and at the end, so a program
that crashes leaves what it had done. Format: JSON, see `ProcessRecord` and `Capture`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

from tilewright.errors import RequestError
from tilewright.ledger import codec
from tilewright.runtime.capture.data import remove_all_but
from tilewright.runtime.capture.described import DescribedLaunch

VERSION = 1
ENOUGH = 3
"""Samples of a busy GPU after which those of an idle one are not looked at."""


@dataclass(frozen=True)
class Times:
    """Samples of a time in microseconds."""

    samples: int = 0
    total_us: float = 0.0

    @property
    def mean_us(self) -> float | None:
        return self.total_us / self.samples if self.samples else None

    def and_(self, other: Times) -> Times:
        return Times(self.samples + other.samples, self.total_us + other.total_us)


@dataclass(frozen=True)
class Recorded:
    """One kind of launch, and how often and how long it was made."""

    launch: DescribedLaunch
    count: int
    in_graph: int = 0
    """How many of ``count`` were recorded into a CUDA graph; how often that was replayed is not known."""
    failed: int = 0
    error: str = ""
    """The first error of a launch that failed."""
    busy: Times = Times()
    """On the GPU, where the GPU had work when the launch was made: the kernel alone."""
    idle: Times = Times()
    """On the GPU, where it had none: with the time that the launch took to get there, so at most this."""
    host: Times = Times()
    """Of the call of `ct.launch`, without the first, which compiles."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Array → file with its elements, beside the record."""
    others: int = 0
    """Further launches of this kernel, of more kinds than are described."""
    estimated: int = 0
    """How many of ``count`` nobody looked at: they are of this kernel, and shared out among its kinds (`counting`)."""

    @property
    def gpu(self) -> Times:
        """The samples that the mean is of."""
        return self.busy if self.busy.samples >= ENOUGH or not self.idle.samples else self.idle

    @property
    def at_most(self) -> bool:
        """Whether the mean holds more than the kernel."""
        return self.gpu is not self.busy

    @property
    def launched(self) -> int:
        """Launches that the GPU did in this process's own calls."""
        return self.count - self.in_graph - self.failed

    @property
    def total_us(self) -> float | None:
        mean = self.gpu.mean_us
        return None if mean is None else mean * self.launched


@dataclass(frozen=True)
class ProcessRecord:
    """What one process launched."""

    pid: int
    program: tuple[str, ...]
    folder: str
    """The working directory of the program."""
    gpu: str
    seconds: float
    """Wall time from the first import of cuda.tile."""
    finished: bool
    """Whether the process came to its end; a part of one that crashed holds what was known until then."""
    launches: tuple[Recorded, ...]


@dataclass(frozen=True)
class Capture:
    """A record: the launches of all processes, those that took longest first."""

    version: int
    parts: tuple[ProcessRecord, ...]

    def launches(self) -> tuple[Recorded, ...]:
        """Equal launches of several processes together."""
        found: dict[str, Recorded] = {}
        for part in self.parts:
            for one in part.launches:
                key = _kind(one.launch)
                found[key] = together(found[key], one) if key in found else one
        return tuple(sorted(found.values(), key=_longest_first))

    def folders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.folder for part in self.parts))


def _kind(launch: DescribedLaunch) -> str:
    """What launches of one kind have in common in every process: their arrays lie elsewhere, but as aligned."""

    def aligned(value: Any) -> Any:
        if isinstance(value, list):
            return [aligned(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {name: one % 16 if name == "address_offset" else aligned(one) for name, one in value.items()}

    return json.dumps(aligned(launch.to_json()), sort_keys=True)


def together(one: Recorded, other: Recorded) -> Recorded:
    return replace(
        one,
        count=one.count + other.count,
        in_graph=one.in_graph + other.in_graph,
        failed=one.failed + other.failed,
        error=one.error or other.error,
        busy=one.busy.and_(other.busy),
        idle=one.idle.and_(other.idle),
        host=one.host.and_(other.host),
        data={**other.data, **one.data},
        others=one.others + other.others,
        estimated=one.estimated + other.estimated,
    )


def _longest_first(one: Recorded) -> tuple[float, int]:
    return (-(one.total_us or 0.0), -one.count)


# Files ------------------------------------------------------------------------------------------------


def part_file(path: Path, process: str) -> Path:
    """process: a name that no other process has."""
    return path.with_name(f"{path.name}.{process}.part")


def parts_of(path: Path) -> list[Path]:
    """The parts that processes left beside ``path``."""
    return sorted(path.parent.glob(f"{escape(path.name)}.*.part"))


def remove_parts(path: Path) -> None:
    """With what a process that was killed had half written."""
    for file in path.parent.glob(f"{escape(path.name)}.*.part*"):
        file.unlink(missing_ok=True)


def write(path: Path, value: Any) -> None:
    """As JSON, all or nothing."""
    beside = path.with_name(f"{path.name}.writing.{os.getpid()}")
    beside.write_text(json.dumps(codec.to_json(value), allow_nan=False), encoding="utf-8")
    os.replace(beside, path)


def merged(path: Path) -> Capture:
    """Makes the record at ``path`` of the parts beside it, which are removed. It takes the place of an earlier one
    with its data, but one without launches does not."""
    capture = Capture(VERSION, tuple(_read(file, ProcessRecord) for file in parts_of(path)))
    if capture.launches() or not is_there(path):
        write(path, capture)
        named = {file for part in capture.parts for one in part.launches for file in one.data.values()}
        remove_all_but(named, path)
    remove_parts(path)
    return capture


def is_there(path: Path) -> bool:
    """Whether a record may be at ``path``; an empty file is as good as none."""
    return path.is_file() and path.stat().st_size > 0


def read(path: Path) -> Capture:
    """The record at ``path``; raises RequestError where there is none, or where it is something else."""
    if not path.is_file():
        raise RequestError(f"no record {path}; make one: tilewright capture --out {path} -- python program.py")
    capture: Capture = _read(path, Capture)
    return capture


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if kind is Capture and isinstance(data, dict) and data.get("version") != VERSION:
            raise ValueError(f"version {data.get('version')}, this Tilewright reads {VERSION}")
        return codec.from_json(kind, data, defaults=True)
    except RecursionError:
        raise RequestError(f"{path} is no record of tilewright capture: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} is no record of tilewright capture: {error}") from None


def chosen(capture: Capture, number: int) -> Recorded:
    """The launch of a row of the table, counted from 1."""
    launches: Sequence[Recorded] = capture.launches()
    if not 1 <= number <= len(launches):
        raise RequestError(f"no launch {number}; the record has 1 to {len(launches)}")
    return launches[number - 1]


def programs(parts: Iterable[ProcessRecord]) -> str:
    """Each program once, in words, without the workers that `multiprocessing` started for it."""
    every = list(dict.fromkeys(" ".join(part.program) for part in parts))
    return ", ".join([one for one in every if " -c from multiprocessing." not in one] or every)
