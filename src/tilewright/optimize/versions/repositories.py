"""Finds the git repository for a task's editable files: the user's repository, or else a private repository.

The user's repository is used if it contains all the files and ignores none. Otherwise (no repository, a package in
site-packages, files of two repositories) Tilewright makes a private bare repository. There, a file's path is relative
to the folder from which its package is imported: ``tilegym/ops/cutile/attention.py``. So ``patch -p1`` can apply a
patch of the private branch in that folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import MachineError
from tilewright.ledger.file import make_private
from tilewright.tools.git import TREE, Git, GitError, bare_repository, private_name
from tilewright.tools.packages import import_root

NO_WORKTREE = ("not a git repository", "must be run in a work tree")
"""Git's messages for a folder that is not in a checkout. All other messages are reported as errors."""


@dataclass(frozen=True)
class RepositoryPlace:
    """The repository of the editable files.

    names: maps the absolute path of the user's file to the path in the repository.
    root: the folder on the user's disk to which the paths in the repository are relative.
    """

    git: Git
    names: Mapping[Path, str]
    root: Path
    private: bool


def place_of(files: Sequence[Path], kernel: str, home: Path) -> RepositoryPlace:
    """Returns the repository of ``files``. Makes a private one below ``home`` if the user has none.

    Raises MachineError if git is missing or fails in the user's repository.
    """
    real = [Path(os.path.realpath(path)) for path in files]
    top = _common_checkout(real)
    if top is not None:
        names = {path: resolved.relative_to(top).as_posix() for path, resolved in zip(files, real, strict=True)}
        git = Git(top, {"GIT_LITERAL_PATHSPECS": "0"})  # `check-ignore` does not support the variable
        if all(git.line_or_none("check-ignore", "--quiet", "--", name) is None for name in names.values()):
            return RepositoryPlace(Git(top), names, top, private=False)
    root = Path(os.path.commonpath([import_root(path) for path in files]))
    names = {path: path.relative_to(root).as_posix() for path in files}
    return RepositoryPlace(_private(home, kernel, [str(root), *sorted(names.values())]), names, root, private=True)


def place_of_tree(root: Path, home: Path) -> RepositoryPlace:
    """Returns the repository in which the files below ``root`` (a real path) are checked out; it has no ``names``.

    Makes a private repository below ``home`` if there is none, or if the repository ignores ``root``, such as a virtual
    environment.
    """
    top = _common_checkout([root / "any"])
    if top is not None:
        git = Git(top, {"GIT_LITERAL_PATHSPECS": "0"})
        if root == top or git.line_or_none("check-ignore", "--quiet", "--", str(root.relative_to(top))) is None:
            return RepositoryPlace(Git(top), {}, top, private=False)
    return RepositoryPlace(_private(home, TREE, [str(root)]), {}, root, private=True)


def run_refs(run: str) -> str:
    """Returns the prefix of the refs of a run of Tilewright."""
    return f"refs/tilewright/{word(run)}"


def word(text: str) -> str:
    """Turns ``text`` into a valid part of a branch's or folder's name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-") or "kernel"


def _common_checkout(files: Sequence[Path]) -> Path | None:
    tops = set()
    for folder in {path.parent for path in files}:
        try:
            tops.add(Git(folder).line("rev-parse", "--show-toplevel"))
        except GitError as error:
            if not any(message in error.stderr for message in NO_WORKTREE):
                raise
            return None
    if len(tops) != 1:
        return None
    top = tops.pop()
    if not os.path.isabs(top) or not all(path.is_relative_to(os.path.realpath(top)) for path in files):
        raise MachineError(f"git says that {files[0]} is in the checkout {top!r}; fix: see what `git --version` prints")
    return Path(top)


def _private(home: Path, name: str, identity: Sequence[str]) -> Git:
    """Returns the private repository for ``identity``. Makes it if it does not exist."""
    make_private(home)
    folder = home / "repositories" / private_name(name, identity)
    return bare_repository(folder)
