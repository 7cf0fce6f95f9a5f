"""Writes config files into a folder: `tilewright tuned export --into` and `tilewright tune --into`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.cli.shared import write
from tilewright.errors import RequestError

if TYPE_CHECKING:
    from tilewright.runtime.store.config_file import ConfigData, ConfigFile


def path_of(folder: Path, name: str, suffix: str = ".json") -> Path:
    """Returns the path of the config file of a kernel or task."""
    return folder / (re.sub(r"[^\w.-]+", "_", name) + suffix)


def earlier_at(path: Path, fix: str) -> ConfigFile | None:
    """Returns the config file that is at ``path`` already; None if there is no file. ``fix``: ends the message of the
    RequestError for a file that cannot be read."""
    from tilewright.runtime.store.config_file import load

    if not os.path.exists(path):
        return None
    try:
        return load(path)
    except RequestError as error:
        raise RequestError(f"{error}; its rows cannot be kept; {fix}") from None


def merged_into(path: Path, new: ConfigData, fix: str) -> tuple[ConfigData, dict[str, int]]:
    """Returns the file to write at ``path``, and how many rows only the file there has, for each GPU."""
    from tilewright.runtime.store.merging import merged

    earlier = earlier_at(path, fix)
    if earlier is None:
        return new, {}
    try:
        done = merged(new, earlier)
    except RequestError as error:
        raise RequestError(f"{error}; {fix}") from None
    return done.file, done.kept


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that its earlier content stays if that fails. Raises RequestError."""
    if path.is_symlink():
        path = path.resolve()  # a link stays a link
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        write(beside, text, parents=True)
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
