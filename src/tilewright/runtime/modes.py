"""The tuning mode of a wrapped kernel, read from the environment at every call.

``TILEWRIGHT_TUNING=now|background|stored|off`` overrides the mode that the library's author chose.
``DISABLE_AUTOTUNE=1`` or ``TILEGYM_DISABLE_AUTOTUNE=1`` overrides both: then the mode is off.

A look-up in `os.environ` costs 0.5 to 1 µs, because it encodes the name and decodes the value. On POSIX, CPython keeps
the variables as bytes in the dictionary ``os.environ._data``. Looking up the three names there costs 60 ns and sees
every change of `os.environ`. If there is no such dictionary, `os.environ` is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from threading import Lock
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from tilewright.errors import RequestError
from tilewright.runtime.store.warn_once import TuningWarning, warn_once

VARIABLE = "TILEWRIGHT_TUNING"
SWITCHES = ("DISABLE_AUTOTUNE", "TILEGYM_DISABLE_AUTOTUNE")
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

Text: TypeAlias = str | bytes
Container: TypeAlias = Mapping[Any, Text]
"""Environment variables by name. Names and values are all `str` or all `bytes`."""


class Mode(str, Enum):
    """The tuning mode: what the first call with a new key does.

    NOW: the call tunes, then launches the winner.
    BACKGROUND: the call launches the shipped configuration. Another thread tunes, and later calls launch the winner.
    STORED: the call launches the configuration in the store or the config file, else the shipped one. It never
        searches.
    OFF: the call launches the shipped configuration, whatever is stored.
    """

    NOW = "now"
    BACKGROUND = "background"
    STORED = "stored"
    OFF = "off"


def from_name(name: object, where: str) -> Mode:
    """Returns the mode called ``name``; case does not matter. Raises `RequestError` if there is none. ``where``: the
    variable or parameter that has the name, for the message."""
    try:
        return Mode(name.strip().lower() if isinstance(name, str) else name)
    except ValueError:
        known = " | ".join(mode.value for mode in Mode)
        raise RequestError(f"{where}={name!s} is no mode; known: {known}") from None


def from_values(values: tuple[Text | None, ...], default: Mode) -> Mode:
    """Returns the mode that these values of the variables in `NAMES` select, else ``default``. The value None means
    that the variable is not set. Raises `RequestError` for a value that is not known."""
    variable, *switches = (None if value is None else os.fsdecode(value) for value in values)
    for name, given in zip(SWITCHES, switches, strict=True):
        value = (given or "").strip().lower()
        if value in ON:
            return Mode.OFF
        if value not in OFF:
            raise RequestError(f"{name}={given} is neither on nor off; known: {', '.join(ON)} | {', '.join(OFF[1:])}")
    return from_name(variable, VARIABLE) if variable and variable.strip() else default


def in_use(values: tuple[Text | None, ...], default: Mode) -> Mode:
    """Returns the mode of `from_values`. For a value that is not known, warns once and returns STORED, because a
    misspelt switch must not start a search."""
    try:
        return from_values(values, default)
    except RequestError as error:
        warn_once(f"{error}; until that is corrected nothing is searched", category=TuningWarning)
        return Mode.STORED


def takes_first() -> bool:
    """Returns whether a variable in `SWITCHES` is on: the program then takes the first configuration of each list."""
    return any(os.environ.get(name, "").strip().lower() in ON for name in SWITCHES)


def fastest_view(environment: Mapping[str, str]) -> tuple[Container, tuple[Text, Text, Text]]:
    """Returns the mapping that looks up the variables of ``environment`` fastest, and the three names as its keys."""
    data = getattr(environment, "_data", None)
    if os.name == "posix" and type(data) is dict and all(type(name) is bytes for name in data):
        return data, (VARIABLE.encode(), SWITCHES[0].encode(), SWITCHES[1].encode())
    return environment, (VARIABLE, *SWITCHES)


CONTAINER, NAMES = fastest_view(os.environ)
"""The environment and the names of the variables, for the hot path. If none is set, the author's mode applies."""


def mode(default: Mode = Mode.NOW) -> Mode:
    """Returns the mode that applies now, in this thread. ``default``: the author's mode, used if no variable is set."""
    selected = in_use(tuple(map(CONTAINER.get, NAMES)), default)
    return Mode.STORED if restricted() and selected in SEARCHING else selected


# Searches in their scope only ---------------------------------------------------------------------------

SEARCHING = (Mode.NOW, Mode.BACKGROUND)
"""The modes that search."""
_inside = ContextVar("tilewright_tuning", default=False)


class ReadsMode(Protocol):
    """An object whose functions read the mode without a call, and so are told when `shared` changes."""

    def read_mode(self) -> None: ...


class _Scopes:
    """only: whether searches need a scope. open: how many scopes are open, in all threads."""

    def __init__(self) -> None:
        self.only, self.open = False, 0
        self.lock = Lock()
        self.readers: WeakSet[ReadsMode] = WeakSet()

    def add(self, reader: ReadsMode) -> None:
        with self.lock:
            self.readers.add(reader)

    def set(self, only: bool, opened: int) -> None:
        with self.lock:
            self.only, self.open = only, self.open + opened
            for each in list(self.readers):
                each.read_mode()


scopes = _Scopes()


def search_only_in_scope() -> None:
    """Makes tuned kernels search only inside ``with tilewright.tuning():``, from now on, in this process.

    For servers, which must not stop for a search: call this at the start, and make the first calls inside the scope.
    Outside, a call without a stored winner launches the shipped configuration, as in the mode ``stored``.
    """
    scopes.set(True, 0)


@contextmanager
def tuning() -> Iterator[None]:
    """Allows searches in this thread or task after `search_only_in_scope`, until the end of the ``with`` block."""
    token = _inside.set(True)
    scopes.set(scopes.only, 1)
    try:
        yield
    finally:
        scopes.set(scopes.only, -1)
        _inside.reset(token)


def restricted() -> bool:
    """Returns whether this thread or task may not search now."""
    return scopes.only and not _inside.get()


def shared(selected: Mode) -> Mode:
    """Returns the mode whose known calls the hot path uses, in all threads."""
    return Mode.STORED if scopes.only and not scopes.open and selected in SEARCHING else selected
