"""Kernel languages: one folder for each. `language_of` finds the language of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tilewright.errors import CompilerMissing, TaskError, UnknownChoice
from tilewright.languages.base import Language
from tilewright.languages.described import Described, DescribedKernel
from tilewright.plugins import plugins

if TYPE_CHECKING:
    from tilewright.task.task import Task


def languages() -> Iterator[Language]:
    """Returns the languages in this folder, then the languages of the entry point group ``tilewright.languages``."""
    return plugins("tilewright.languages", "LANGUAGE")


def is_kernel(kernel: Any) -> bool:
    return any(language.recognises(kernel) for language in languages())


def language_of(kernel: Any) -> Language:
    """Returns the language of a kernel. Raises TaskError if no language recognises the kernel."""
    if isinstance(kernel, DescribedKernel):
        return Described(kernel.language)
    for language in languages():
        if language.recognises(kernel):
            return language
    known = ", ".join(language.name for language in languages())
    fix = "; fix: decorate it with @ct.kernel, @triton.jit or @cute.jit" if isinstance(kernel, FunctionType) else ""
    raise TaskError(f"the launch's kernel is a {type(kernel).__name__}, not a kernel of a known language: {known}{fix}")


def language_named(name: str) -> Language:
    """Returns the language called ``name``. Raises UnknownChoice if there is none."""
    known = {language.name: language for language in languages()}
    if name not in known:
        raise UnknownChoice("language", name, known)
    return known[name]


def expect(source: str) -> None:
    """Starts slow compiler processes early, if the kernels of a task file need them. ``source``: the file's text."""
    for language in languages():
        language.expect(source)


def load_front_ends() -> None:
    """Loads the front ends without torch. Call it in a process whose forks lower kernels and never launch them."""
    for language in languages():
        language.keep_torch_out()
        with suppress(CompilerMissing):  # the error is raised again when a kernel is compiled
            language.load_front_end()


def keep_torch_out() -> None:
    """Prevents imports of torch by the front ends.

    Call this only in Tilewright's own processes that compile kernels and never launch them.
    """
    for language in languages():
        language.keep_torch_out()


def load(where: str) -> Task:
    """Loads the task ``FILE[:TASK]`` in one of Tilewright's own processes, and then prevents imports of torch by front
    ends."""
    from tilewright.task.loading import file_named, load_task  # late: users' programs load no task files

    with suppress(OSError, UnicodeDecodeError):  # loading says what is wrong
        expect(Path(file_named(where)[0]).read_text(encoding="utf-8"))
    task = load_task(where)
    keep_torch_out()
    return task


def cautions() -> tuple[str, ...]:
    """Returns warnings about the languages of the kernels that this process has loaded."""
    return tuple(filter(None, (language.caution() for language in languages())))
