"""Entries of a run's journal, as git stores them.

An entry is a commit in a history of its own, below ``refs/tilewright/<run>/journal/``. Its message is one line of JSON.
Its tree has two folders: ``was`` holds the files as the journal first saw them, ``now`` the same files after the entry.
So ``git diff ENTRY:was ENTRY:now`` shows all changes of a run, and ``git show ENTRY:now/train.py`` shows a file. Modes
other than 644 and 755 are only in the JSON.

The ref ``head`` is the last finished entry. The ref ``next`` is the last entry whose files were to be changed. This
entry is unfinished if its parent is ``head``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from tilewright.errors import MachineError
from tilewright.ledger.codec import from_json, to_json
from tilewright.optimize.versions.patches import git_mode
from tilewright.optimize.versions.repositories import place_of_tree, run_refs
from tilewright.optimize.versions.user_tree import FileContent, FileState
from tilewright.tools.child import workplace
from tilewright.tools.git import Git


@dataclass(frozen=True)
class FileStep:
    """One file of an entry. ``name``: its path relative to the repository's top, or to the root of a folder without
    git."""

    name: str
    before: FileState
    after: FileState


EntryKind = Literal["backup", "edit", "patch", "revert"]


@dataclass(frozen=True)
class EntryRecord:
    """The content of an entry's commit message.

    made: the folders that the entry creates.
    worktree: the worktree of the repository that has the files, "." for the main one.
    """

    kind: EntryKind
    files: tuple[FileStep, ...]
    made: tuple[str, ...] = ()
    worktree: str = "."

    def in_order(self, *, undo: bool) -> list[tuple[int, FileStep]]:
        """Returns the files with their numbers. Removals come first, because a removed file may have the name of a new
        folder."""
        return sorted(
            enumerate(self.files), key=lambda each: (each[1].before if undo else each[1].after).kind != "absent"
        )  # fmt: skip


@dataclass(frozen=True)
class JournalEntry:
    """One recorded step. ``id``: the commit, which evidence quotes."""

    id: str
    at: datetime
    record: EntryRecord

    @property
    def kind(self) -> EntryKind:
        """The kind of the step. A ``backup`` changes no file."""
        return self.record.kind

    @property
    def files(self) -> tuple[FileStep, ...]:
        """The files of the step."""
        return self.record.files


@dataclass(frozen=True)
class KnownFile:
    """The states of a file that the journal knows.

    was: the state as the user left it, when the run first recorded the file or after the user's own later change.
    backup: the state at the last backup.
    now: the state after the last entry.
    """

    was: FileState
    backup: FileState
    now: FileState


def folded(known: Mapping[str, KnownFile], record: EntryRecord) -> Mapping[str, KnownFile]:
    """Returns the known states of all files after the step ``record``."""
    after = dict(known)
    for step in record.files:
        before = known.get(step.name)
        if record.kind != "backup":
            assert before is not None, "an edit without a backup is refused"
            after[step.name] = replace(before, now=step.after)
        elif before is None or before.now != step.after:
            after[step.name] = KnownFile(step.after, step.after, step.after)
        else:
            after[step.name] = replace(before, backup=step.after)
    return after


def journal_entries(root: Path, run: str, home: Path) -> tuple[JournalEntry, ...]:
    """Returns the finished entries of a run, the oldest first; none for an unknown run. Changes nothing.

    root: the folder for which the run's journal was opened.
    home: Tilewright's folder.
    """
    return EntryStore(place_of_tree(root.resolve(), home.absolute()).git, run).entries()


def journal_runs(root: Path, home: Path) -> tuple[str, ...]:
    """Returns the names of the runs that have a journal in the repository of ``root``."""
    git = place_of_tree(root.resolve(), home.absolute()).git
    refs = git("for-each-ref", "--format=%(refname)", "refs/tilewright").splitlines()
    return tuple(sorted({ref.split("/")[2] for ref in refs if ref.endswith("/journal/head")}))


def unfinished_runs(git: Git) -> tuple[str, ...]:
    """Returns the runs whose last entry a killed process may have left unfinished."""
    listed = git("for-each-ref", "--format=%(refname) %(objectname) %(parent)", "refs/tilewright").splitlines()
    refs = {ref: commits for ref, *commits in (line.split(" ", 2) for line in listed)}
    nexts = [ref.removesuffix("/next") for ref in refs if ref.endswith("/journal/next")]
    return tuple(ref.split("/")[2] for ref in nexts if refs[f"{ref}/next"][1] == refs.get(f"{ref}/head", [""])[0])


class EntryStore:
    """Reads and writes the entries of one run."""

    def __init__(self, git: Git, run: str) -> None:
        self._refs = f"{run_refs(run)}/journal"
        self._git = replace(git, variables={**git.variables, "GIT_NO_REPLACE_OBJECTS": "1"}).with_author()
        self.directory = Path(git.line("rev-parse", "--absolute-git-dir"))
        common = self._git.folder / git.line("rev-parse", "--git-common-dir")
        self.worktree = os.path.relpath(self.directory, os.path.realpath(common))
        self._hash = "sha1" if len(git.line("hash-object", "--stdin", stdin="")) == 40 else "sha256"

    def head(self) -> str:
        """Returns the last finished entry; "" if there is none."""
        return self._pointer("head")

    def _pointer(self, name: str) -> str:
        return self._git.line_or_none("rev-parse", "--verify", "--quiet", f"{self._refs}/{name}") or ""

    def entries(self, last: str = "") -> tuple[JournalEntry, ...]:
        """Returns the entries up to ``last``, or up to ``head``. Raises MachineError if an entry cannot be read."""
        if not (last := last or self.head()):
            return ()
        lines = self._git("rev-list", "--reverse", "--format=%ct%n%B", last).splitlines()
        return tuple(_entries(line for line in lines if line))

    def state_of(self, content: FileContent) -> FileState:
        """Returns kind, mode and git's id of a file with this content. Writes nothing to git."""
        if content.kind == "absent":
            return FileState("absent")
        digest = hashlib.new(self._hash, b"blob %d\0" % len(content.data), usedforsecurity=False)
        digest.update(content.data)
        return FileState(content.kind, content.mode, digest.hexdigest())

    def stored(self, content: FileContent) -> FileState:
        """Writes the content to git, with no filters, and returns its state."""
        state = self.state_of(content)
        if state.kind != "absent":
            text = content.data.decode(errors="surrogateescape")
            if self._git.line("hash-object", "-w", "--stdin", stdin=text) != state.blob:
                raise MachineError("git stored other bytes than it was given")
        return state

    def content_of(self, state: FileState) -> FileContent:
        """Returns the content of a stored state."""
        if state.kind == "absent":
            return FileContent("absent")
        data = self._git("cat-file", "blob", state.blob).encode(errors="surrogateescape")
        return FileContent(state.kind, state.mode, data)

    def write(self, record: EntryRecord, known: Mapping[str, KnownFile], parent: str) -> str:
        """Writes the entry's commit, and returns its id. ``known``: the states of all files after the entry."""
        states = {f"was/{name}": file.was for name, file in known.items()}
        states |= {f"now/{name}": file.now for name, file in known.items()}
        rows = [f"{git_mode(state)} {state.blob} 0\t{name}\0" for name, state in states.items() if state.blob]
        with workplace() as folder:
            places = {"GIT_DIR": str(self.directory), "GIT_WORK_TREE": str(folder), "GIT_INDEX_FILE": f"{folder}/index"}
            git = Git(Path(folder), {**self._git.variables, **places}, self._git.passed)
            git("update-index", "-z", "--index-info", stdin="".join(rows))
            tree = git.line("write-tree")
        message = json.dumps(to_json(replace(record, worktree=self.worktree)), separators=(",", ":"))
        return self._git.line("commit-tree", tree, *(("-p", parent) if parent else ()), stdin=message)

    def intend(self, entry: str) -> None:
        """Makes ``entry`` the entry in progress, before its files change. If ``entry`` is the last finished one, no
        entry is in progress.
        """
        self._git("update-ref", f"{self._refs}/next", entry)

    def finish(self, entry: str, before: str) -> None:
        """Makes the entry the last finished one. ``before``: the previous one; "" if there was none."""
        self._git("update-ref", f"{self._refs}/head", entry, before)  # "" requires that the ref does not exist yet

    def unfinished(self) -> JournalEntry | None:
        """Returns the entry whose files a killed process may have changed; None if all entries are finished."""
        if not (pending := self._pointer("next")):
            return None
        *before, entry = self.entries(pending)
        return entry if (before[-1].id if before else "") == self.head() else None

    def unlock(self) -> None:
        """Removes the locks that a killed git command has left on the refs."""
        common = self._git.folder / self._git.line("rev-parse", "--git-common-dir")
        for left in common.joinpath(self._refs).glob("*.lock"):
            left.unlink(missing_ok=True)


def _entries(lines: Iterator[str]) -> Iterator[JournalEntry]:
    for line in lines:
        commit, seconds, message = line.removeprefix("commit "), next(lines, ""), next(lines, "")
        try:
            record = from_json(EntryRecord, json.loads(message), defaults=True)
            yield JournalEntry(commit, datetime.fromtimestamp(int(seconds), timezone.utc), record)
        except ValueError as error:
            raise MachineError(f"{commit[:12]} is no journal entry that this Tilewright can read: {error}") from None
