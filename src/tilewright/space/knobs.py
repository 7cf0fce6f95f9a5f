"""Defines the valid values of knobs, parses values, and lists the neighbours of a value.

A knob is a *constant* (passed to the kernel) or a *hint* (passed to the compiler), as the task declares it. A constant
counts as a tile size if its name begins with TILE or BLOCK, in any case. After this word, the name ends or has one of
``_``, ``SIZE``, a digit or one last letter (TILE_M, BLOCK_SIZE, TILEK). A tile size must be a power of two: cuda-tile
1.7.0 raises TypeCheckingError for other sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tilewright.errors import SpaceError
from tilewright.plugins import plugins
from tilewright.records import Value


@dataclass(frozen=True)
class Hint:
    """A compiler hint of a language. The value None lets the compiler choose."""

    name: str
    values: tuple[Value, ...]
    spelled: str
    """The values in words, for messages."""
    steps: Literal["halve and double", "listed", "any"] = "halve and double"
    """Which values are neighbours: a number with its half and double, adjacent listed values, or any two values."""


@cache
def hints() -> Mapping[str, Hint]:
    """Returns the hints of all languages, by name. A name means the same hint in every language."""
    known: dict[str, Hint] = {}
    for language in plugins("tilewright.languages", "LANGUAGE"):
        for hint in language.hints:
            known.setdefault(hint.name, hint)
    return known


CLUSTER_ARCHITECTURES = frozenset({90, 100, 103, 107, 110})
"""Architectures on which ``num_ctas`` above 1 is useful. sm_80 to sm_89 ignore the hint. sm_120 and sm_121 have no
multicast, and one kernel of six did not compile there."""

_TILE_NAME = re.compile(r"(TILE|BLOCK)(_|SIZE|\d|[A-Z]?$)", re.IGNORECASE)


def is_tile(name: str) -> bool:
    return _TILE_NAME.match(name) is not None


def is_power_of_two(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1 and value & (value - 1) == 0


def tile_problem(name: str, value: Value) -> str | None:
    if not is_tile(name) or is_power_of_two(value):
        return None
    return f"{name}={value} is not a power of two of at least 1; cuTile accepts no other tile size"


def hint_problem(name: str, value: Value) -> str | None:
    """Returns the reason why the compiler does not accept the value for this hint; None if it accepts the value."""
    hint = hints()[name]
    if value is None or any(type(value) is type(each) and value == each for each in hint.values):
        return None
    return f"{name}={value!r} is not valid; use {hint.spelled}, or None to let the compiler choose"


def cluster_problem(num_ctas: Value, arch: int) -> str | None:
    """Returns the reason why this ``num_ctas`` is useless on ``arch``; None if it is useful."""
    if num_ctas in (None, 1) or arch in CLUSTER_ARCHITECTURES:
        return None
    if arch < 90:
        return f"num_ctas={num_ctas}: sm_{arch} has no clusters and ignores it silently"
    return f"num_ctas={num_ctas}: sm_{arch} has no cluster multicast; use num_ctas=1"


def read(name: str, text: str, known: Sequence[Value]) -> Value:
    """Parses the value of a constant: one of ``known``, or a new value of the same type.

    Raises SpaceError for other strings.
    """
    for value in known:
        if text == spell(value):
            return value
    lowered = text.lower()
    if any(isinstance(value, bool) for value in known):
        if lowered in ("true", "1", "false", "0"):
            return lowered in ("true", "1")
    elif any(isinstance(value, int) for value in known) and re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    elif any(isinstance(value, float) for value in known):
        try:
            return float(text)
        except ValueError:
            pass
    examples = ", ".join(map(spell, known))
    raise SpaceError(f"{name}={text} is not a value of this knob; for example: {examples}")


def read_hint(name: str, text: str) -> Value:
    if text.lower() in ("auto", "none"):
        return None
    spelled = {spell(each): each for each in hints()[name].values}
    value = int(text) if re.fullmatch(r"[+-]?\d+", text) else spelled.get(text, text)
    if problem := hint_problem(name, value):
        raise SpaceError(problem)
    return value


def spell(value: Value) -> str:
    """Formats a value as `records.Configuration` does: None as ``auto``."""
    return "auto" if value is None else str(value)


def steps(value: Value, known: Sequence[Value]) -> tuple[Value, ...]:
    """Returns the values of a constant next to ``value``; none if the constant has one known value.

    Next to a boolean is the other boolean. Next to a power of two are its half and its double, within half the smallest
    and twice the largest known value. Next to any other value are the adjacent known values.
    """
    if len(known) < 2:
        return ()
    if isinstance(value, bool):
        return (not value,)
    if is_power_of_two(value) and all(is_power_of_two(other) for other in known):
        return _halve_double(value, known)
    return _adjacent(value, known)


def hint_steps(name: str, value: Value, known: Sequence[Value]) -> tuple[Value, ...]:
    """Returns the values of a hint next to ``value``; none if the hint has one known value.

    The compiler's choice (None) is next to every known value. `Hint.steps` says which other values are neighbours.
    """
    if len(known) < 2:
        return ()
    hint = hints()[name]
    if hint.steps == "any":
        return tuple(other for other in hint.values if other != value)
    numbers = [other for other in known if isinstance(other, int)]
    if value is None:
        return tuple(numbers)
    if hint.steps == "listed" or not is_power_of_two(value):
        return (None, *_adjacent(value, numbers))
    return (None, *(other for other in _halve_double(value, numbers) if other in hint.values))


def _halve_double(value: Value, known: Sequence[Value]) -> tuple[Value, ...]:
    assert isinstance(value, int)
    numbers = [other for other in known if isinstance(other, int)]
    low, high = min(numbers, default=value) / 2, max(numbers, default=value) * 2
    return tuple(other for other in (value // 2, value * 2) if other >= 1 and low <= other <= high)


def _adjacent(value: Value, known: Sequence[Value]) -> tuple[Value, ...]:
    """Returns the known values just before and after ``value``: by size for numbers, else in the declared order."""
    if all(isinstance(other, (int, float)) for other in (value, *known)):
        below = [other for other in known if other < value]  # type: ignore[operator]
        above = [other for other in known if other > value]  # type: ignore[operator]
        return (*([max(below)] if below else []), *([min(above)] if above else []))  # type: ignore[type-var]
    if value not in known:
        return tuple(known)
    place = list(known).index(value)
    return tuple(known[other] for other in (place - 1, place + 1) if 0 <= other < len(known))


def check_value(where: str, value: object) -> None:
    """Raises SpaceError for a value that a configuration or its string form cannot contain.

    where: the position of the value in the declaration, for the message.
    """
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise SpaceError(f"{where}: {value!r} is a {type(value).__name__}; use int, float, bool or str")
    if isinstance(value, float) and not math.isfinite(value):
        raise SpaceError(f"{where}: {value} is not a finite number")
    if isinstance(value, str) and (value != value.strip() or not value or set(value) & {",", "="}):
        raise SpaceError(f"{where}: {value!r} must be a word without commas, equals signs and outer spaces")
