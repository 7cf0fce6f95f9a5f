"""Reads unified diffs, and applies them to contents in git's index. No file of a worktree is read or written.

Git applies a patch only if all of its context matches, and all of it or nothing. But git skips what it cannot read:
lines after a hunk that is longer than its header says are lost silently. So `require_complete` reads the hunks first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

from tilewright.optimize.versions.git import Git, GitError
from tilewright.optimize.versions.user_tree import ABSENT, ChangeRefused, FileContent, in_a_line

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_OUTSIDE = ("--- ", "+++ ", "-- ", "--")
"""Lines outside the hunks that begin with + or -: the names of files, and the signature of a mail."""

EXACTLY = ("--whitespace=nowarn", "--no-ignore-whitespace")
FIX = "make the patch anew from the files as they are, e.g. with git diff"


def require_complete(patch: str) -> None:
    """Raises `ChangeRefused` if a line of the patch belongs to no hunk, or a hunk is cut off."""
    lines = enumerate(patch.split("\n"), 1)
    for number, line in lines:
        if hunk := _HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in hunk.groups())
            _skip_hunk(lines, number, old, new)
        elif line.startswith(("@@", "+", "-", "\\")) and not line.startswith(_OUTSIDE) and not line.startswith("\\ "):
            raise ChangeRefused(
                f"line {number} of the patch is in no hunk: the header of the hunk before it counts wrongly; fix: {FIX}"
            )
        elif line.startswith("GIT binary patch"):
            next((None for _, data in lines if not data), None)


def _skip_hunk(lines: Iterator[tuple[int, str]], start: int, old: int, new: int) -> None:
    while old > 0 or new > 0:
        _, line = next(lines, (0, "@"))
        kind = line[:1] or " "
        if kind not in " +-\\":
            break
        old -= kind in " -"
        new -= kind in " +"
    if old or new:
        raise ChangeRefused(f"the hunk in line {start} of the patch has other lines than its header says; fix: {FIX}")


def patched_names(git: Git, patch: str, strip: int) -> tuple[tuple[str, str], ...]:
    """Returns for each file of the patch its old and its new name; equal names if the patch does not rename it.
    strip: how many leading folders of the names are left out."""
    old = _names(git, patch, strip, "-R")[::-1]  # git applies a reversed patch from its end (since git 2.30)
    return tuple(zip(old, _names(git, patch, strip), strict=True))


def apply_to_index(git: Git, patch: str, strip: int) -> dict[str, tuple[str, str]]:
    """Applies the patch to the index of ``git``. Returns name → mode and blob, for all files of the index. Raises
    `ChangeRefused` if the patch does not fit."""
    try:
        git("apply", "--cached", f"-p{strip}", *EXACTLY, "-", stdin=patch)
    except GitError as error:
        raise ChangeRefused(f"the patch does not fit the files: {error}; fix: {FIX}") from error
    rows = (row.partition("\t") for row in git("ls-files", "--stage", "-z").split("\0") if row)
    return {name: (facts.split()[0], facts.split()[1]) for facts, _, name in rows}


def content_after(
    name: str, mode: int, after: tuple[str, str] | None, data: Callable[[str], bytes]
) -> FileContent:  # fmt: skip
    """Returns what a patch makes of a file. mode: the permissions before. after: mode and blob of the file in the
    index; None if the patch removes it. data: returns the bytes of a blob."""
    if after is None:
        return ABSENT
    kind, blob = after
    if kind == "120000":
        target = os.path.normpath(os.path.join(os.path.dirname(name), os.fsdecode(data(blob))))
        if os.path.isabs(target) or target.split("/")[0] == "..":
            raise ChangeRefused(f"the patch makes {in_a_line(name)} a link to {in_a_line(target)}, outside the program")
        return FileContent("link", 0, data(blob))
    if kind not in ("100644", "100755"):
        raise ChangeRefused(f"the patch makes {in_a_line(name)} a submodule; only files and links are changed")
    if (kind == "100755") != bool(mode & 0o100):  # the patch changes the mode
        mode = mode | (mode & 0o444) >> 2 if kind == "100755" else mode & ~0o111
    return FileContent("file", mode, data(blob))


def _names(git: Git, patch: str, strip: int, *options: str) -> list[str]:
    try:
        stats = git("apply", "--numstat", "-z", f"-p{strip}", *EXACTLY, *options, "-", stdin=patch)
    except GitError as error:
        raise ChangeRefused(f"that is not a patch that git understands: {error}; fix: {FIX}") from error
    return [row.split("\t", 2)[2] for row in stats.split("\0") if row]
