"""Reads unified diffs, and applies them to file contents in memory. It reads no file of the user.

Git applies a patch only if all of its context matches: all of the patch or nothing. But git silently skips lines that
it cannot read, such as lines after a hunk that is longer than its header says. So `require_complete` checks the hunks
first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tilewright.optimize.versions.user_tree import ABSENT, ChangeRefused, FileContent, FileState, in_a_line
from tilewright.tools.child import workplace
from tilewright.tools.git import Git, GitError

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_OUTSIDE = ("--- ", "+++ ", "-- ", "--")
"""The lines outside hunks that may start with + or -: names of files, and the signature of a mail."""

FIX = "make the patch anew from the files as they are, e.g. with git diff"


def require_complete(patch: str) -> None:
    """Raises `ChangeRefused` if a line of the patch belongs to no hunk, or a hunk is incomplete."""
    lines = enumerate(patch.split("\n"), 1)
    for number, line in lines:
        if hunk := _HUNK.match(line):
            old, new = (int(count) if count is not None else 1 for count in hunk.groups())
            _skip_hunk(lines, number, old, new)
        elif line.startswith(("@@", "+", "-", "\\")) and not line.startswith(_OUTSIDE) and not line.startswith("\\ "):
            raise ChangeRefused(
                f"line {number} of the patch is in no hunk: the previous hunk's header has wrong counts; fix: {FIX}"
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


def patched_names(patch: str, strip: int | None = None) -> tuple[tuple[str, str], ...]:
    """Returns the old and the new name of each file in the patch. They are equal if the patch does not rename the file.

    strip: the number of leading folders to remove from the names; None lets git guess (one for ``a/ops.py``).
    Raises `ChangeRefused` if git does not understand the patch.
    """
    options = ("--numstat", "-z", *_options(strip), "-")
    with _scratch() as git:
        try:
            old, new = (git("apply", *reverse, *options, stdin=patch) for reverse in (("-R",), ()))
        except GitError as error:
            raise ChangeRefused(f"that is not a patch that git understands: {error}; fix: {FIX}") from error
    names = [[row.split("\t", 2)[2] for row in stats.split("\0") if row] for stats in (old, new)]
    return tuple(zip(names[0][::-1], names[1], strict=True))  # with -R, git starts at the patch's end (since 2.30)


def applied(
    patch: str, before: Mapping[str, FileContent], new_mode: int, strip: int | None = None
) -> Mapping[str, FileContent]:  # fmt: skip
    """Returns the contents after the patch, for each name in ``before``. All files of the patch must be in ``before``.

    new_mode: the mode of a new file. A renamed file keeps its mode.
    Raises `ChangeRefused` if the patch does not fit exactly, or creates a submodule or a link out of the folder.
    """
    require_complete(patch)
    sources = {new: old for old, new in patched_names(patch, strip)}
    with _scratch() as git:
        rows = [f"{git_mode(content)} {_blob(git, content)} 0\t{name}\0"
                for name, content in before.items() if content.kind != "absent"]  # fmt: skip
        git("update-index", "-z", "--index-info", stdin="".join(rows))
        try:
            git("apply", "--cached", *_options(strip), "-", stdin=patch)
        except GitError as error:
            raise ChangeRefused(f"the patch does not fit the files: {error}; fix: {FIX}") from error
        after = {}
        for row in git("ls-files", "--stage", "-z").split("\0")[:-1]:
            facts, _, name = row.partition("\t")
            source = next((at for at in (before[name], before[sources.get(name, name)]) if at.kind == "file"), None)
            after[name] = _content(git, name, facts.split(), new_mode if source is None else source.mode)
    return {name: after.get(name, ABSENT) for name in before}


def git_mode(file: FileContent | FileState) -> str:
    """Returns the mode with which git stores a file or a link."""
    return "120000" if file.kind == "link" else "100755" if file.mode & 0o100 else "100644"


def _options(strip: int | None) -> tuple[str, ...]:
    return ("--whitespace=nowarn", "--no-ignore-whitespace", *(() if strip is None else (f"-p{strip}",)))


def _blob(git: Git, content: FileContent) -> str:
    return git.line("hash-object", "-w", "--stdin", stdin=content.data.decode(errors="surrogateescape"))


def _content(git: Git, name: str, facts: Sequence[str], mode: int) -> FileContent:
    """Returns the content of a file in the index.

    facts: git's mode and blob id.
    mode: the permissions before.
    """
    kind, blob, *_ = facts
    if kind not in ("100644", "100755", "120000"):
        raise ChangeRefused(f"the patch makes {in_a_line(name)} a submodule; only files and links are changed")
    data = git("cat-file", "blob", blob).encode(errors="surrogateescape")
    if kind == "120000":
        target = os.path.normpath(os.path.join(os.path.dirname(name), os.fsdecode(data)))
        if os.path.isabs(target) or target.split("/")[0] == "..":
            raise ChangeRefused(f"the patch makes {in_a_line(name)} a link to {in_a_line(target)}, outside the program")
        return FileContent("link", 0, data)
    if (kind == "100755") != bool(mode & 0o100):  # the patch changes the mode
        mode = mode | (mode & 0o444) >> 2 if kind == "100755" else mode & ~0o111
    return FileContent("file", mode, data)


@contextmanager
def _scratch() -> Iterator[Git]:
    """Makes a temporary empty repository. With it, git uses neither a repository above the folder nor its settings."""
    with workplace() as folder:
        git = Git(Path(folder))
        git("init", "--quiet", "--template=")
        yield git
