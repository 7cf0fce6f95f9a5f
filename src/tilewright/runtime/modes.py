"""When the wrapper may tune: read from the environment at every call, before any cache.

``TILEWRIGHT_TUNING=now|background|stored|off`` overrides what the author of the library chose.
``DISABLE_AUTOTUNE`` and ``TILEGYM_DISABLE_AUTOTUNE`` win over it and mean off.

A look-up in `os.environ` costs 0.5 to 1 µs, because it encodes the name and decodes the value. CPython on POSIX
keeps bytes in a dictionary behind it. Asking that costs 60 ns for the three names, and changes through `os.environ`
are seen at once. If the dictionary is not there, `os.environ` itself is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias

from tilewright.errors import RequestError

VARIABLE = "TILEWRIGHT_TUNING"
SWITCHES = ("DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE")

ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class Mode(str, Enum):
    """What happens at the first call of a key."""

    NOW = "now"
    """Tune, then launch the winner."""
    BACKGROUND = "background"
    """Launch the shipped configuration, tune in another thread, switch when the winner is verified."""
    STORED = "stored"
    """Launch what the store or the shipped config file has, else the shipped configuration; never search."""
    OFF = "off"
    """Launch the shipped configuration, whatever is stored."""


def from_name(name: object, where: str) -> Mode:
    """The mode of this name; ``where`` says what gave it. Raises `RequestError` that lists the modes."""
    text = name.strip().lower() if isinstance(name, str) else name
    try:
        return Mode(text)
    except ValueError:
        known = " | ".join(mode.value for mode in Mode)
        raise RequestError(f"{where}={name!s} is no mode; known: {known}") from None


Text: TypeAlias = str | bytes
Names: TypeAlias = tuple[Text, Text, Text]
Container: TypeAlias = Mapping[Any, Text]
"""Variables by name, all text or all bytes."""


def from_values(values: tuple[Text | None, ...], default: Mode) -> Mode:
    """The mode for the ``values`` of the variables, None where one is unset. Raises `RequestError` for a bad value."""
    variable, *switches = (None if value is None else os.fsdecode(value) for value in values)
    for name, given in zip(SWITCHES, switches, strict=True):
        value = (given or "").strip().lower()
        if value in ON:
            return Mode.OFF
        if value not in OFF:
            raise RequestError(f"{name}={given} is neither on nor off; known: {', '.join(ON)} | {', '.join(OFF[1:])}")
    return from_name(variable, VARIABLE) if variable and variable.strip() else default


def behind(environment: Mapping[str, str]) -> tuple[Container, Names]:
    """A container, and the names of the variables in it: ``name in container`` says whether one is set."""
    data = getattr(environment, "_data", None)
    if os.name == "posix" and type(data) is dict and all(type(name) is bytes for name in data):
        return data, (VARIABLE.encode(), SWITCHES[0].encode(), SWITCHES[1].encode())
    return environment, (VARIABLE, *SWITCHES)


def reader(container: Container, names: Names) -> Callable[[Mode], Mode]:
    """The function that reads the mode from the result of `behind`."""

    def read(default: Mode = Mode.NOW) -> Mode:
        return from_values(tuple(map(container.get, names)), default)

    return read


CONTAINER, NAMES = behind(os.environ)
"""For code that cannot afford a call: as long as `CONTAINER` has none of `NAMES`, the author's mode applies."""
mode = reader(CONTAINER, NAMES)
"""``mode(default)``: the mode that applies now; ``default`` is the author's, for an environment that says nothing."""
