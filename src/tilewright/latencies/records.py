"""Latency records (F-3) as tests leave them in pytest's ``user_properties``, and the line that shows one.

A record maps a direction (forward, backward) to its times in milliseconds. TileGym keys it by the name
of the backend, ``{"cutile": {"forward": {…}}}``; a record without that level is read too, and its
backend is the part of the test's name that is one: whole, so that ``cutile_rs`` is not ``cutile`` (X-02).
What is no record is a `Malformed` with the test's name and the reason; nothing here raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from tilewright.records import Value

PROPERTY = "benchmark"
"""The name under which tests record."""

NUMBERS = ("mean", "std", "rel_std", "median", "min", "max", "nrep", "peak_mem_mb")
"""The keys of one direction (F-3). ``rel_std`` is in percent, ``peak_mem_mb`` in MiB, times are in ms."""

BACKENDS = ("cutile", "cutile_rs", "tilecpp", "triton", "pytorch")
"""TileGym's, as they stand in the names of its tests."""

UNNAMED = "unnamed"

SIGNIFICANT = 6
"""Digits in the line: a timer has fewer."""


@dataclass(frozen=True)
class Latency:
    """The times of one direction, in ms. The median is what is decided by."""

    mean: float
    std: float
    rel_std: float
    """Percent."""
    median: float
    min: float
    max: float
    nrep: int
    peak_mem_mb: float
    extra: Mapping[str, Value] = field(default_factory=dict)
    """Further numbers and words of the record, such as quartiles or the name of the kernel."""


@dataclass(frozen=True)
class Record:
    """What one test measured of one backend."""

    test: str
    """Its node id."""
    backend: str
    directions: Mapping[str, Latency]


@dataclass(frozen=True)
class Malformed:
    """A record that cannot be read, and why."""

    test: str
    reason: str

    def __str__(self) -> str:
        return f"{self.test}: {self.reason}"


def read(test: str, properties: Iterable[tuple[str, Any]]) -> tuple[tuple[Record, ...], tuple[Malformed, ...]]:
    """The records of one test, one a backend, and what is wrong with the others.

    ``properties``: pairs of name and value, as pytest's reports carry them. Of two records of the same
    backend the last one counts, and that is said.
    """
    records: dict[str, Record] = {}
    problems: list[Malformed] = []
    for name, value in properties:
        if name != PROPERTY:
            continue
        for found in _read(test, value):
            if isinstance(found, Malformed):
                problems.append(found)
                continue
            if found.backend in records:
                problems.append(Malformed(test, f"recorded {found.backend} twice; the last one counts"))
            records[found.backend] = found
    return tuple(records.values()), tuple(problems)


def line_of(record: Record) -> str:
    """The form of P-17, e.g. ``Cutile: {'forward': {'mean': 0.0123, …}} ms``, with 6 significant digits."""
    shown = {direction: _shown(latency) for direction, latency in record.directions.items()}
    return f"{record.backend.capitalize()}: {shown} ms"


def backend_of(test: str) -> str:
    """The backend that the parameters of a test name, e.g. ``test_op[cutile_rs-1024]``."""
    _, _, parameters = test.partition("[")
    words = re.split(r"\W+", parameters)
    return next((word for word in words if word in BACKENDS), UNNAMED)


def _shown(latency: Latency) -> dict[str, Value]:
    values: dict[str, Value] = {key: getattr(latency, key) for key in NUMBERS} | dict(latency.extra)
    return {
        key: float(f"{value:.{SIGNIFICANT}g}") if isinstance(value, float) else value for key, value in values.items()
    }


def _read(test: str, value: Any) -> Iterator[Record | Malformed]:
    if not isinstance(value, Mapping) or not value:
        yield Malformed(test, f"its benchmark record is {_kind(value)}, not a mapping of direction to numbers")
    elif _is_numbers(value):
        yield Malformed(test, "its benchmark record names no direction; write {'forward': {…}}")
    elif any(map(_is_numbers, value.values())):
        yield _record(test, backend_of(test), value)
    else:
        for backend, directions in value.items():
            yield _record(test, str(backend), directions)


def _record(test: str, backend: str, directions: Any) -> Record | Malformed:
    if not isinstance(directions, Mapping) or not any(isinstance(one, Mapping) for one in directions.values()):
        return Malformed(test, f"its benchmark record holds nothing of {backend}: {_kind(directions)}")
    read_: dict[str, Latency] = {}
    for direction, numbers in directions.items():
        if not isinstance(numbers, Mapping):
            continue  # F-3 allows further keys
        problem = _problem(numbers)
        if problem:
            return Malformed(test, f"{backend} {direction}: {problem}")
        read_[str(direction)] = _latency(numbers)
    return Record(test, backend, read_)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and any(key in value for key in NUMBERS)


def _problem(numbers: Mapping[Any, Any]) -> str | None:
    if missing := [key for key in NUMBERS if key not in numbers]:
        return f"{', '.join(missing)} missing"
    for key in NUMBERS:
        if not isinstance(numbers[key], Real) or isinstance(numbers[key], bool):
            return f"{key} is {_kind(numbers[key])}, not a number"
    for key in ("mean", "median", "min", "max"):
        if not (math.isfinite(numbers[key]) and numbers[key] > 0):
            return f"{key} is {float(numbers[key])}, and a time is positive and finite"
    if not math.isfinite(numbers["nrep"]) or numbers["nrep"] < 1 or int(numbers["nrep"]) != numbers["nrep"]:
        return f"nrep is {numbers['nrep']}, not a count"
    unknown = numbers["nrep"] == 1  # one sample has no deviation
    for key in ("std", "rel_std"):
        if not numbers[key] >= 0 and not (unknown and math.isnan(numbers[key])):
            return f"{key} is {float(numbers[key])}, not a deviation"
    slack = 1e-5 * numbers["median"]  # some were computed in single precision
    if not numbers["min"] - slack <= numbers["median"] <= numbers["max"] + slack:
        return "median is not between min and max"
    return None


def _latency(numbers: Mapping[Any, Any]) -> Latency:
    extra: dict[str, Value] = {}
    for key, value in numbers.items():
        if key in NUMBERS:
            continue
        if isinstance(value, (bool, str)):
            extra[str(key)] = value
        elif isinstance(value, Real):
            extra[str(key)] = float(value)
    plain = {key: float(numbers[key]) for key in NUMBERS if key != "nrep"}
    return Latency(**plain, nrep=int(numbers["nrep"]), extra=extra)


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an empty mapping" if not value else f"a mapping of {', '.join(map(str, value))}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
