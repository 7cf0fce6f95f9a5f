"""Detects changes that a version made to the user's files.

It is used only where the operating system cannot prevent such writes (`sandbox.unprotected`). The guard compares the
files before and after a version has run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

FILES = 2000
"""The most files that are watched."""
FILE_BYTES = 1 << 20
"""Bytes. Larger files are assumed to be data and are not watched."""


class FileGuard:
    """Watches the editable files, and the Python files in their folders and subfolders."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._contents: dict[Path, bytes | None] = dict(_contents(files))
        self.original = self._contents
        """The contents when the guard was made, by path."""

    def changed(self) -> Path | None:
        """Returns the first file that was changed or removed since the last call; None if there is none.

        The file is not restored, because the user may have edited it.
        """
        now = {path: content_of(path) for path in self._contents}
        changed = next((path for path, content in self._contents.items() if now[path] != content), None)
        self._contents = now
        return changed


def _contents(files: Iterable[Path]) -> Iterable[tuple[Path, bytes]]:
    named = [path.absolute() for path in files]
    folders = dict.fromkeys(path.parent for path in named)
    beside = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    for _, path in zip(range(FILES), dict.fromkeys((*named, *beside)), strict=False):
        if (content := content_of(path)) is not None and len(content) <= FILE_BYTES:
            yield path, content


def content_of(path: Path) -> bytes | None:
    """Returns the content of a file; None if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None
