"""Writes config files into a folder: `tilewright tuned export --into` and `tilewright tune --into`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tilewright.errors import RequestError
from tilewright.runtime.store.config_file import ConfigData, ConfigFile, load
from tilewright.runtime.store.merging import merged, refuse_another_kernel

LONGEST = 200
"""Bytes of a file's name without its ending, and without what the drafts of a file have more."""


def path_of(folder: Path, name: str, suffix: str = ".json") -> Path:
    """Returns the path of the config file of a kernel or task."""
    file = re.sub(r"[^\w.-]+", "_", name)
    if len(file.encode()) > LONGEST:
        raise RequestError(f"the name {file[:40]}… has {len(file)} characters, too many for a file")
    return folder / (file + suffix)


def earlier_at(path: Path, kernel: str, module: str, fix: str) -> ConfigFile | None:
    """Returns the config file of this kernel that is at ``path`` already; None if there is no file.

    Raises RequestError, whose message ends with ``fix``, for a file that cannot be read or is of another kernel.
    """
    if not os.path.exists(path):
        return None
    try:
        earlier = load(path)
    except RequestError as error:
        raise RequestError(f"{error}; its rows cannot be kept; {fix}") from None
    try:
        refuse_another_kernel(earlier, kernel, module)
    except RequestError as error:
        raise RequestError(f"{error}; {fix}") from None
    return earlier


def merged_into(path: Path, new: ConfigData, fix: str) -> tuple[ConfigData, dict[str, int]]:
    """Returns the file to write at ``path``, and how many rows only the file there has, for each GPU."""
    earlier = earlier_at(path, new["kernel"], new["module"], fix)
    if earlier is None:
        return new, {}
    done = merged(new, earlier)
    return done.file, done.kept


def make_folder(folder: Path) -> None:
    """Makes a folder before long work whose result goes there. Raises RequestError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"cannot make the folder {folder}: {error.strerror}") from error


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that its earlier content stays if that fails. Raises RequestError."""
    if path.is_symlink():
        path = path.resolve()  # a link stays a link
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def written(path: Path, rows: int, name: str, kept: Mapping[str, int]) -> str:
    """Returns a line about a written file. ``kept``: the result of `merged_into`."""
    of_boards = ", ".join(f"{count} of {board}" for board, count in sorted(kept.items()))
    return f"{path}: {rows} rows of {name}" + (f"; only in the file, and kept: {of_boards}" if kept else "")
