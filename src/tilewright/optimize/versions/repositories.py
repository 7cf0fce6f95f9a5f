"""Which git repository holds a task's editable files: the user's, or else a private one beside.

The user's, if one repository holds all of them and ignores none. Otherwise (no git there, a package in
site-packages, files of two repositories) a bare repository of Tilewright's own, in which each file stands
at its path from the folder that makes it importable: ``tilegym/ops/cutile/attention.py``. A patch of that
branch applies where the package lies, with ``patch -p1``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.optimize.versions.git import Git, GitError

NO_WORKTREE = ("not a git repository", "must be run in a work tree")
"""What git says where it has no checkout; whatever else it says is an error for the user."""


@dataclass(frozen=True)
class RepositoryPlace:
    """A repository, and the editable files' paths in it.

    root: where those paths start on the user's disk.
    """

    git: Git
    names: Mapping[Path, str]
    root: Path
    private: bool


def place_of(files: Sequence[Path], kernel: str, home: Path) -> RepositoryPlace:
    """The repository of ``files``; a private one is made below ``home`` when it is needed. Raises MachineError when git
    is missing or refuses the user's repository."""
    real = [Path(os.path.realpath(path)) for path in files]
    top = _common_checkout(real)
    if top is not None:
        names = {path: resolved.relative_to(top).as_posix() for path, resolved in zip(files, real, strict=True)}
        git = Git(top, {"GIT_LITERAL_PATHSPECS": "0"})  # `check-ignore` takes names alone, and knows no such word
        if all(git.tells("check-ignore", "--quiet", "--", name) is None for name in names.values()):
            return RepositoryPlace(Git(top), names, top, private=False)
    root = Path(os.path.commonpath([_import_root(path) for path in files]))
    names = {path: path.relative_to(root).as_posix() for path in files}
    identity = hashlib.sha256("\n".join([str(root), *sorted(names.values())]).encode()).hexdigest()[:8]
    folder = home / "repositories" / f"{kernel}-{identity}"
    _make(folder)
    return RepositoryPlace(_bare(folder), names, root, private=True)


def _common_checkout(files: Sequence[Path]) -> Path | None:
    tops = set()
    for folder in {path.parent for path in files}:
        try:
            tops.add(Git(folder).line("rev-parse", "--show-toplevel"))
        except GitError as error:
            if not any(words in error.said for words in NO_WORKTREE):
                raise
            return None
    return Path(tops.pop()) if len(tops) == 1 else None


def _import_root(path: Path) -> Path:
    """The folder from which the file's package is imported; the file's own where it is in none."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _bare(folder: Path) -> Git:
    """Named outright: some users forbid git to find a bare repository by itself (safe.bareRepository)."""
    return Git(folder, {"GIT_DIR": str(folder)})


def _make(folder: Path) -> None:
    """An empty bare repository, whole or not at all, since another run may make it at the same time."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    draft.mkdir()
    Git(draft)("init", "--quiet", "--bare", "--template=", ".")
    _bare(draft)("config", "core.autocrlf", "false")
    try:
        draft.rename(folder)
    except OSError:  # the other run was faster
        shutil.rmtree(draft)
        if not folder.is_dir():
            raise
