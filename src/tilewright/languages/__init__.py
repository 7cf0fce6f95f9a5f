"""Kernel languages: one folder each. `language_of` finds the language that a kernel is written in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

from tilewright.errors import CompilerMissing, TaskError, UnknownChoice
from tilewright.languages.base import Language
from tilewright.languages.described import Described, DescribedKernel
from tilewright.plugins import plugins


def languages() -> Iterator[Language]:
    """The languages in this folder, then those of the entry point group ``tilewright.languages``."""
    return plugins("tilewright.languages", "LANGUAGE")


def is_kernel(kernel: Any) -> bool:
    return any(language.recognises(kernel) for language in languages())


def language_of(kernel: Any) -> Language:
    """The language that a kernel is written in. Raises TaskError if no language recognises it."""
    if isinstance(kernel, DescribedKernel):
        return Described(kernel.language)
    for language in languages():
        if language.recognises(kernel):
            return language
    known = ", ".join(language.name for language in languages())
    fix = "; fix: decorate it with @ct.kernel or @triton.jit" if isinstance(kernel, FunctionType) else ""
    raise TaskError(f"the launch's kernel is a {type(kernel).__name__}, not a kernel of a known language: {known}{fix}")


def language_named(name: str) -> Language:
    """The language called ``name``. Raises UnknownChoice."""
    known = {language.name: language for language in languages()}
    if name not in known:
        raise UnknownChoice("language", name, known)
    return known[name]


def load_front_ends() -> None:
    """Loads the front ends without torch, for a process whose forks lower kernels and never launch."""
    for language in languages():
        language.keep_torch_out()
        with suppress(CompilerMissing):  # compiling raises it again
            language.load_front_end()


def keep_torch_out() -> None:
    """Keeps the front ends from importing torch. Only for processes of our own that compile and never launch."""
    for language in languages():
        language.keep_torch_out()


def cautions() -> tuple[str, ...]:
    """What the user should know of the languages whose kernels this process has loaded."""
    return tuple(filter(None, (language.caution() for language in languages())))
