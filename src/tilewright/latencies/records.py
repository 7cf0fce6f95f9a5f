"""Reads the latency records that tests leave in pytest's ``user_properties``, and formats them.

A record maps a direction (forward, backward) to its times in milliseconds. TileGym maps each backend to such a record:
``{"cutile": {"forward": {…}}}``. For a record without a backend, the backend is found in the test's name, as a whole
word: ``cutile_rs`` is not ``cutile``. A record that cannot be read becomes a `Malformed`; `read` raises nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real

from tilewright.records import Value

PROPERTY = "benchmark"
"""The name of the pytest property that holds a test's record."""
NUMBERS = ("mean", "std", "rel_std", "median", "min", "max", "nrep", "peak_mem_mb")
"""The keys of one direction. Times are in ms, ``rel_std`` is in percent, ``peak_mem_mb`` in MiB."""
BACKENDS = ("cutile", "cutile_rs", "tilecpp", "triton", "pytorch")
"""TileGym's backends, as they are written in the names of its tests."""
UNNAMED = "unnamed"


@dataclass(frozen=True)
class Latency:
    """The times of one direction (forward or backward), in ms. Comparisons use the median."""

    mean: float
    std: float
    rel_std: float
    """The standard deviation in percent of the mean."""
    median: float
    min: float
    max: float
    nrep: int
    peak_mem_mb: float
    extra: Mapping[str, Value] = field(default_factory=dict)
    """Further entries of the record, such as quartiles or the name of the kernel."""


@dataclass(frozen=True)
class Record:
    """The latencies of one backend in one test."""

    test: str
    """The test's node id."""
    backend: str
    directions: Mapping[str, Latency]


@dataclass(frozen=True)
class Malformed:
    """A record that cannot be read, and why."""

    test: str
    reason: str

    def __str__(self) -> str:
        return f"{self.test}: {self.reason}"


def read(test: str, properties: Iterable[tuple[str, object]]) -> tuple[tuple[Record, ...], tuple[Malformed, ...]]:
    """Returns the records of one test, one for each backend, and the problems of records that cannot be read.

    If a backend has two records, the last one counts. ``properties`` are pairs of name and value, from pytest's report.
    """
    records: dict[str, Record] = {}
    problems: list[Malformed] = []
    for name, value in properties:
        if name != PROPERTY:
            continue
        for record in _read(test, value):
            if isinstance(record, Malformed):
                problems.append(record)
                continue
            if record.backend in records:
                problems.append(Malformed(test, f"recorded {record.backend} twice; the last one counts"))
            records[record.backend] = record
    return tuple(records.values()), tuple(problems)


def line_of(record: Record) -> str:
    """Returns a line such as ``Cutile: {'forward': {'mean': 0.0123, …}} ms``, with 6 digits of each number."""
    shown = {}
    for direction, latency in record.directions.items():
        values: dict[str, Value] = {key: getattr(latency, key) for key in NUMBERS} | dict(latency.extra)
        shown[direction] = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}
    return f"{record.backend.capitalize()}: {shown} ms"


def backend_of(test: str) -> str:
    """Returns the backend in the parameters of a test's name, as in ``test_op[cutile_rs-1024]``; else `UNNAMED`."""
    words = re.split(r"\W+", test.partition("[")[2])
    return next((word for word in words if word in BACKENDS), UNNAMED)


def _read(test: str, value: object) -> Iterator[Record | Malformed]:
    if not isinstance(value, Mapping) or not value:
        yield Malformed(test, f"its benchmark record is {_kind(value)}, not a mapping of direction to numbers")
    elif _is_numbers(value):
        yield Malformed(test, "its benchmark record names no direction; write {'forward': {…}}")
    elif any(map(_is_numbers, value.values())):
        yield _record(test, backend_of(test), value)
    else:
        for backend, directions in value.items():
            yield _record(test, str(backend), directions)


def _record(test: str, backend: str, directions: object) -> Record | Malformed:
    if not isinstance(directions, Mapping) or not any(isinstance(times, Mapping) for times in directions.values()):
        return Malformed(test, f"its benchmark record has no times for {backend}: {_kind(directions)}")
    latencies: dict[str, Latency] = {}
    for direction, numbers in directions.items():
        if isinstance(numbers, Mapping):  # other keys, without times, are allowed
            try:
                latencies[str(direction)] = _latency(numbers)
            except ValueError as error:
                return Malformed(test, f"{backend} {direction}: {error}")
    return Record(test, backend, latencies)


def _is_numbers(value: object) -> bool:
    return isinstance(value, Mapping) and any(key in value for key in NUMBERS)


def _latency(numbers: Mapping[str, object]) -> Latency:
    """Reads the times of one direction. Raises ValueError, with the reason, if they are not valid."""
    if missing := [key for key in NUMBERS if key not in numbers]:
        raise ValueError(f"{', '.join(missing)} missing")
    plain: dict[str, float] = {}
    extra: dict[str, Value] = {}
    for key, value in numbers.items():
        if isinstance(value, Real) and not isinstance(value, bool):
            (plain if key in NUMBERS else extra)[str(key)] = float(value)
        elif key in NUMBERS:
            raise ValueError(f"{key} is {_kind(value)}, not a number")
        elif isinstance(value, (bool, str)):
            extra[str(key)] = value
    for key in ("mean", "median", "min", "max"):
        if not (math.isfinite(plain[key]) and plain[key] > 0):
            raise ValueError(f"{key} is {plain[key]}, but a time must be positive and finite")
    count = plain.pop("nrep")
    if not math.isfinite(count) or count < 1 or int(count) != count:
        raise ValueError(f"nrep is {count:g}, not a count")
    for key in ("std", "rel_std"):
        if not plain[key] >= 0 and not (count == 1 and math.isnan(plain[key])):  # one sample has no deviation
            raise ValueError(f"{key} is {plain[key]}, not a deviation")
    slack = 1e-5 * plain["median"]  # some records are computed in single precision
    if not plain["min"] - slack <= plain["median"] <= plain["max"] + slack:
        raise ValueError("median is not between min and max")
    return Latency(nrep=int(count), extra=extra, **plain)


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "an empty mapping" if not value else f"a mapping of {', '.join(map(str, value))}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
