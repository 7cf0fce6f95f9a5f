"""Kernel languages: one file each. `language_of` finds the one that a kernel is written in."""

from __future__ import annotations

from typing import Any

from tilewright.errors import TaskError
from tilewright.languages.base import Language
from tilewright.languages.cutile.cutile import CuTile

LANGUAGES: tuple[Language, ...] = (CuTile(),)


def language_of(kernel: Any) -> Language:
    for language in LANGUAGES:
        if language.owns(kernel):
            return language
    known = ", ".join(language.name for language in LANGUAGES)
    raise TaskError(f"the launch's kernel is a {type(kernel).__name__}, not a kernel of a known language: {known}")


def keep_torch_out() -> None:
    """For a process of our own that compiles and never launches: no front end imports torch in it."""
    for language in LANGUAGES:
        language.keep_torch_out()


def warm_up() -> None:
    """For the worker, while it waits for cubins: what the first launch would do besides its kernel."""
    for language in LANGUAGES:
        language.warm_up()
