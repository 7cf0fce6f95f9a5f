"""Copies a program's tree into a private folder, where the program runs with edited files.

The user's tree is only read here. Python files are copied. Other files are copied up to `COPIED_BYTES` each and
`COPIED_TOTAL` in all; larger ones become links to the user's files. Folders are real, so a new file that the program
writes stays in the copy. Python environments, and folders with more than `MANY` entries and no Python file of the
program, are links. ``.git`` and caches are left out.

Before Python's `open` or `torch.save` write to a link, the link becomes a file of the copy. The program can still write
to these files of the user's tree: a large file that it overwrites by other means than `open` and `torch.save`; files
below a linked folder; and files whose absolute path does not come from its command, PYTHONPATH, ``__file__`` or the
current folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from tilewright.errors import RequestError
from tilewright.ledger.file import storage
from tilewright.program.command import PYTHON, ProgramCommand, program_at
from tilewright.program.tree import files_of, is_environment
from tilewright.runtime.copied import VARIABLE
from tilewright.runtime.started import python_path
from tilewright.tools.child import workplace

COPIED_BYTES, COPIED_TOTAL = 1 << 20, 1 << 28
MANY = 2000
LEFT_OUT = {".git", "__pycache__"}


@dataclass(frozen=True)
class ProgramCopy:
    """A program whose files are a copy. It starts like a `ProgramCommand`."""

    original: ProgramCommand
    root: Path
    """The copy of the command's root, absolute."""

    @property
    def script(self) -> Path:
        """The copy of the script."""
        return self.root / self.original.script.relative_to(self.original.root)

    @cached_property
    def cwd(self) -> Path:
        """The folder in which the command starts: in the copy, if it is in the root."""
        return self._copied(self.original.cwd) or self.original.cwd

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The command's words. Paths within the root are replaced by paths in the copy."""
        words, at = self.original.words, program_at(self.original.words)
        return tuple(self._program(word) if n == at else self._word(word) for n, word in enumerate(words))

    def __str__(self) -> str:
        return str(self.original)

    def environment(self) -> dict[str, str]:
        """Returns the environment in which the command starts. If packages of the root are installed as editable, the
        program imports their copies.
        """
        before = self.original.environment()
        entries = before.get("PYTHONPATH", "").split(os.pathsep)
        changed = {"PYTHONPATH": os.pathsep.join(self._text(entry) for entry in entries)} if any(entries) else {}
        copied = f"{self.original.root}\n{self.root}"
        moved = {**before, **changed, "PWD": str(self.cwd), VARIABLE: copied}
        return {**moved, "PYTHONPATH": python_path(moved)}

    def _copied(self, path: Path) -> Path | None:
        """Returns the copy of a path; None if it is outside of the root."""
        for root in (self.original.root, Path(os.path.realpath(self.original.root))):
            with suppress(ValueError):
                return self.root / path.relative_to(root)
        return None

    def _program(self, word: str) -> str:
        """Returns a word with its path in the copy. The path of an interpreter stays the same, because it finds its
        packages by it.
        """
        if os.sep in word and PYTHON.fullmatch(Path(word).name):
            return os.path.abspath(self.original.cwd / word)
        return self._word(word)

    def _word(self, word: str) -> str:
        path = Path(os.path.abspath(self.original.cwd / word))
        if self._text(word) != word:
            return self._text(word)
        if os.path.isabs(word) or not path.exists():
            return word
        inside = self._copied(path)
        if self.cwd != self.original.cwd:  # relative paths within the root are still valid
            return str(path) if inside is None else word
        return str(inside) if inside else word

    def _text(self, text: str) -> str:
        """Replaces the path of the root in a string, where it is a whole path or the beginning of one."""
        root = str(self.original.root)
        before, found, after = text.partition(root)
        if not found or (after and after[0] not in (os.sep, os.pathsep, ",")):
            return text
        return f"{before}{self.root}{self._text(after)}"


Startable: TypeAlias = "ProgramCommand | ProgramCopy"
"""A program that can be started: it has ``words``, ``cwd`` and ``environment()``."""


@contextmanager
def program_copy(command: ProgramCommand, texts: Mapping[Path, str]) -> Iterator[ProgramCopy]:
    """Copies the program's tree, with ``texts`` in place of the user's files, for the length of the ``with`` block.

    To compare versions, run the unchanged one in a copy, too (``texts`` empty): then both write in a copy. All copies
    have paths of the same length. The folder is removed at the end, even if this process is killed.

    texts: absolute path of a file below the root, which may be new → its whole text, which is written as UTF-8.
    Raises RequestError for a file outside of the root, StorageError if the copy cannot be written.
    """
    names = {_within(command.root, path): text for path, text in texts.items()}
    with workplace() as folder:
        copy = ProgramCopy(command, Path(os.path.realpath(folder)) / command.root.name)
        with storage(copy.root):
            script = command.script.relative_to(command.root)
            _Copier(command.root, [*files_of(command.root), *names, script]).copy(command.root, copy.root)
            for name, text in names.items():
                _write(copy.root / name, text)
        yield copy


def _within(root: Path, path: Path) -> Path:
    for within in (root, Path(os.path.realpath(root))):
        with suppress(ValueError):
            return Path(os.path.abspath(path)).relative_to(within)
    raise RequestError(f"{path} is not a file of the program in {root}")


def _write(path: Path, text: str) -> None:
    """Writes a new file in place of a file or link. It keeps the mode, and never writes through a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode if path.exists() else None
    path.unlink(missing_ok=True)
    path.write_bytes(text.encode())
    if mode is not None:
        path.chmod(mode)


class _Copier:
    """Copies a tree as this module's docstring says. ``files``: the program's Python files, relative to ``root``."""

    def __init__(self, root: Path, files: Sequence[Path]) -> None:
        self.root, self.left = root, COPIED_TOTAL
        python = (name for name in files if name.suffix == ".py")
        self.with_python = {root / folder for name in python for folder in name.parents}

    def copy(self, source: Path, target: Path) -> None:
        """Copies the folder ``source``."""
        target.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(source):
            path, place = Path(entry.path), target / entry.name
            if entry.name in LEFT_OUT:
                continue
            if entry.is_symlink():
                place.symlink_to(self._pointed(path))
            elif entry.is_dir():
                self._folder(path, place)
            elif entry.is_file():
                self._file(path, place, entry.stat().st_size)

    def _folder(self, path: Path, place: Path) -> None:
        if path in self.with_python or not (is_environment(path) or _has_many(path)):
            self.copy(path, place)
        else:
            place.symlink_to(path)

    def _file(self, path: Path, place: Path, size: int) -> None:
        if path.suffix != ".py" and size > min(COPIED_BYTES, self.left):
            place.symlink_to(path)
            return
        self.left -= size
        shutil.copy2(path, place)

    def _pointed(self, link: Path) -> str:
        """Returns the target of a copied link. It is relative if the link points within the root, so that the copied
        link points within the copied tree. Otherwise it is the absolute path of the original target."""
        target = Path(os.path.normpath(link.parent / os.readlink(link)))
        inside = target.is_relative_to(self.root)
        return os.path.relpath(target, link.parent) if inside else str(target)


def _has_many(folder: Path) -> bool:
    seen = 0
    for _, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MANY:
            return True
    return False
