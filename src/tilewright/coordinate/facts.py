"""Reads facts for a route that the question's words cannot give: the kernels of a file, and the architecture."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from tilewright.coordinate.routing import FileKernels
from tilewright.errors import RequestError
from tilewright.hardware.architectures import ARCHITECTURES, DEFAULT_ARCH, architecture

_ENDING, _NAME = re.compile(r"\.py\b"), re.compile(r"[\w./~-]+\.py$")
_WORD = re.compile(r"\S+")
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


def kernels_in(path: Path) -> FileKernels:
    """Reads a file without running it. A file that is not Python, such as a trace, has no kernels.

    Raises RequestError if the file cannot be read.
    """
    if path.suffix == ".py":
        from tilewright.source.kernels import is_program, kernels_by_language  # late: most questions name no file
        from tilewright.source.source_file import SourceFile

        file = SourceFile.requested(path)
        try:
            lines = {node.name: node.lineno for node in file.functions}
            return FileKernels(str(path), kernels_by_language(file), is_program(file), lines)
        except RecursionError as error:
            raise RequestError(f"{path}: its expressions are nested too deep to be read") from error
    if not path.is_file():
        what = "is a folder; name a file in it" if path.is_dir() else "no such file"
        raise RequestError(f"{path}: {what}")
    return FileKernels(str(path), is_program=True)


def kernels_named_in(question: str) -> FileKernels | None:
    """Reads the first Python file that a question names. Returns None if the file does not exist or cannot be read."""
    for name in files_named_in(question, Path.cwd()):
        with suppress(RequestError, RecursionError):
            if Path(name).is_file():
                return kernels_in(Path(name))
    return None


def files_named_in(question: str, folder: Path) -> tuple[str, ...]:
    """Returns the names of Python files in a question, without duplicates.

    A name with spaces is in quotes, or it is the name of a file that is in ``folder``.
    """
    found, begin = list[str](), 0
    for ending in _ENDING.finditer(question):
        before, quote = question[begin : ending.end()], question[ending.end() : ending.end() + 1]
        begin = ending.end()
        if quote and quote in "\"'`" and quote in before:
            found.append(before.rpartition(quote)[2])
        elif name := _NAME.search(before):
            words = (before[at.start() :] for at in reversed([*_WORD.finditer(before)]))
            found.append(next((each for each in (name[0], *words) if _is_file(folder, each)), name[0]))
    return tuple(dict.fromkeys(str(Path(os.path.expanduser(name))) for name in found))


def _is_file(folder: Path, name: str) -> bool:
    with suppress(OSError):  # a text that is too long for a name
        return (folder / os.path.expanduser(name)).is_file()
    return False


def arch_of_capability(text: str) -> str:
    """Returns the architecture of a compute capability such as ``9.0``. Raises RequestError if it is unknown."""
    if not (parts := _CAPABILITY.fullmatch(text.strip())):
        raise RequestError(f"'{text}' is no compute capability; write it as 9.0, or name --arch sm_90")
    return architecture(f"sm_{parts[1]}{parts[2]}").name


def execution_context() -> str:
    """Returns where the work runs. All delegations of a run contain this text."""
    from tilewright.hardware.gpu import detect
    from tilewright.hardware.machine import machine_of, target_of
    from tilewright.remote import on_words

    machine = machine_of(target_of(None, detect()))
    reached = " ".join(["", "reached with", *on_words()]) if on_words() else ""
    return f"{machine.host}{reached}; GPU: {machine.gpu or 'none'}"


def arch_here() -> str:
    """Returns the architecture of this machine's GPU; without one, the default."""
    from tilewright.hardware.gpu import detect

    gpu = detect()
    return gpu.arch if gpu and gpu.arch in ARCHITECTURES else DEFAULT_ARCH
