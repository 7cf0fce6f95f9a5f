"""Loads a task file whose kernel languages are not all installed, so that its other implementations can be used.

While the file runs, a stand-in takes the place of the language: decorators and other calls of the stand-in return a
stand-in again. Afterwards, an implementation whose launch function reaches a stand-in is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

EXTRAS = {"triton": "tilewright[triton]", "cutlass": "tilewright[cutedsl]"}
"""Maps a module of a kernel language to the extra that installs the module."""


def needs(language: str) -> str:
    """Returns the end of a message about a language that is not installed, with the fix."""
    return f"needs {language}, which is not installed; fix: pip install '{EXTRAS[language]}'"


class StandIn:
    """Takes the place of every object of a language that is not installed."""

    def __init__(self, language: str) -> None:
        self._needed = language

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> StandIn:
        return self

    def __getitem__(self, _: object) -> StandIn:
        return self


class _Module(ModuleType):
    @property
    def _needed(self) -> str:
        return self.__name__.partition(".")[0]

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(self._needed)


class _Finder:
    """Finds the modules of the ``languages`` as stand-ins. Implements `importlib.abc.MetaPathFinder` and `Loader`."""

    def __init__(self, languages: Sequence[str]) -> None:
        self.languages = languages

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        ours = name.partition(".")[0] in self.languages
        return ModuleSpec(name, self, is_package=True) if ours else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def stood_in(languages: Sequence[str]) -> Iterator[None]:
    """Puts stand-ins in place of the ``languages`` for the block. Modules that got stand-ins are forgotten after it."""
    finder, before = _Finder(languages), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        new = {name: sys.modules[name] for name in set(sys.modules) - before} if languages else {}
        for name, module in new.items():
            values = (module, *getattr(module, "__dict__", {}).values())
            if any(isinstance(value, StandIn | _Module) for value in values):
                del sys.modules[name]


def missing_in(launch: Callable[..., Any]) -> str | None:
    """Returns the language that is not installed and that a launch function uses; None if it uses none."""
    waiting, seen = [launch], set[int]()
    while waiting:
        value: Any = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, StandIn | _Module):
            return value._needed
        if hasattr(value, "func"):  # a partial
            waiting += [value.func, *getattr(value, "args", ()), *getattr(value, "keywords", {}).values()]
        if isinstance(value, FunctionType):
            names = _names(value.__code__)
            waiting += [value.__globals__[name] for name in names if name in value.__globals__]
            waiting += [cell.cell_contents for cell in value.__closure__ or () if cell.cell_contents is not None]
    return None


def _names(code: CodeType) -> set[str]:
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)
