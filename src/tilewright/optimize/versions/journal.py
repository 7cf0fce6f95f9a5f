"""The journal of a run: Tilewright changes files of the user only through it.

    with Journal.open(root, run, home) as journal:
        journal.backup_file("train.py")
        edited = journal.edit_file("train.py", text)     # or apply_patch(patch)
        ...                                              # run it, compare it, time it
        journal.revert_file("train.py")                  # if it is not better

* Each step is an entry: a commit below ``refs/tilewright/<run>/journal/`` in the user's repository, or in a private one
  below Tilewright's home. The user's index, branches and stash are not changed. Each method returns an entry's id.
* The entry is written before a file changes. If the process is killed meanwhile, the next `open` restores the files of
  the unfinished entry. All files are then as in the last finished entry.
* A file without a backup is not edited. A file that somebody else has changed since its last entry is not touched.
* An entry of several files changes all of them or none.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tilewright.ledger.file import storage
from tilewright.optimize.versions.entries import (
    EntryKind,
    EntryRecord,
    EntryStore,
    FileStep,
    JournalEntry,
    KnownFile,
    folded,
    unfinished_runs,
)
from tilewright.optimize.versions.locks import locked, release
from tilewright.optimize.versions.patches import applied, patched_names
from tilewright.optimize.versions.repositories import RepositoryPlace, place_of_tree
from tilewright.optimize.versions.user_tree import (
    ABSENT,
    LARGEST,
    ChangeRefused,
    FileChanged,
    FileContent,
    FileState,
    UserTree,
    in_a_line,
)
from tilewright.tools.git import Git

LOCK = "tilewright-journal.lock"


@dataclass(frozen=True)
class Recovered:
    """The result of `Journal.recover`.

    entry: the unfinished entry, "" if there was none.
    restored: the files that were restored.
    left: files that another program has changed meanwhile; they were not touched.
    """

    entry: str = ""
    restored: tuple[Path, ...] = ()
    left: tuple[Path, ...] = ()


class Journal:
    """The journal of one run, for one process at a time. Use it in a ``with`` block.

    root: the folder below which files may be changed.
    run: the run's name.
    recovered: the files that `open` restored.

    Paths may be relative to ``root``. A path that leads out of ``root``, into git's own folders, into a submodule or
    into Tilewright's worktrees raises `ChangeRefused`. If a path ends with a symbolic link, it means the link itself,
    not the target.
    """

    def __init__(self, place: RepositoryPlace, root: Path, run: str, home: Path, lock: IO[bytes]) -> None:
        git = Git(place.git.folder, place.git.variables, (lock.fileno(),))
        self.root, self.run = root, run
        self._lock = lock
        self._store = EntryStore(git, run)
        # Outside of a repository, git must be told which one it is.
        self._git = f"git --git-dir={shlex.quote(_common(place.git))}" if place.private else "git"
        closed = (self._store.directory, Path(lock.name).parent, home / "repositories", home / "worktrees")
        self._tree = UserTree(place.root, root, tuple(folder.resolve() for folder in closed))
        self._head = ""
        self._entries: tuple[JournalEntry, ...] = ()
        self._known: Mapping[str, KnownFile] = {}
        self.recovered = self.recover()

    @classmethod
    def open(cls, root: Path, run: str, home: Path) -> Journal:
        """Opens the journal of ``run``, and restores files that a killed process left unfinished.

        The process may belong to this run or to another run in the same repository.

        root: the folder of the user's program.
        home: Tilewright's folder, for a private repository.
        Raises MachineError if another journal is open in the same repository, or if git fails.
        """
        root, home = root.resolve(), home.absolute()
        if any(part.casefold() == ".git" for part in root.parts):
            raise ChangeRefused(f"{in_a_line(root)} is git's own folder; fix: name the folder of the program")
        with storage(home):
            place = place_of_tree(root, home)
        path = Path(_common(place.git), LOCK)
        holder = f"run {run} (process {os.getpid()})"
        busy = f"another run is changing files in {root}: {{holder}}; fix: wait until it ends, or end it"
        with storage(path):
            lock = locked(path, holder, busy)
        try:
            for other in unfinished_runs(place.git):
                cls(place, root, other, home, lock)
            journal = cls(place, root, run, home, lock)
            if journal._entries and journal._entries[-1].record.worktree != journal._store.worktree:
                raise ChangeRefused(f"run {run} is of another worktree of this repository; fix: start it there")
            return journal
        except BaseException:
            release(lock)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the lock. Changes no file."""
        if not self._lock.closed:
            release(self._lock)

    @property
    def entries(self) -> tuple[JournalEntry, ...]:
        """The finished entries, the oldest first."""
        return self._entries

    def backup_file(self, path: Path | str) -> str:
        """Records the file as it is now, or that it does not exist. `revert_file` restores this state.

        If the file differs from the last entry, the user has changed it. No later step undoes this change.
        """
        name = self._tree.name(path)
        inside = [other for other in self._known if f"{other}/".startswith(f"{name}/") or name.startswith(f"{other}/")]
        if inside and inside != [name]:
            raise ChangeRefused(f"{in_a_line(name)} and {in_a_line(inside[0])} cannot both be files of one run")
        state = self._store.stored(self._tree.read(name))
        record = EntryRecord("backup", (FileStep(name, state, state),))
        entry = self._store.write(record, folded(self._known, record), self._head)
        self._store.finish(entry, self._head)
        self._read()
        return entry

    def edit_file(self, path: Path | str, text: str | bytes) -> str:
        """Replaces the file's whole content, or creates the file. The mode does not change."""
        return self.edit_files({Path(path): text})

    def edit_files(self, texts: Mapping[Path, str | bytes]) -> str:
        """Replaces the contents of several files in one entry. ``texts``: the whole new text of each file, by path.

        Each text is written as UTF-8 with unchanged line ends. Text that was read with ``surrogateescape`` is written
        with its original bytes.
        """
        wanted = {}
        for path, text in texts.items():
            name = self._editable(path)
            now = self._known[name].now
            if now.kind == "link":
                raise ChangeRefused(f"{in_a_line(path)} is a symbolic link; fix: edit the file that it leads to")
            mode = now.mode if now.kind == "file" else _mode_of_new_files()
            wanted[name] = FileContent("file", mode, _encoded(path, text))
        return self._change("edit", wanted)

    def apply_patch(self, patch: str | bytes) -> str:
        """Applies a unified diff in one entry: all of it, or nothing. The diff may create, remove and rename files and
        change modes.

        Its paths are relative to the repository's top, as git writes them, or to `root` without a repository. Raises
        `ChangeRefused` if a line of context differs, or a file has no backup.
        """
        text = os.fsdecode(patch) if isinstance(patch, bytes) else patch
        strip, pairs = self._named(text)
        before = {}
        for name in (name for pair in pairs for name in pair):
            if self._editable(self._tree.top / name) != name:
                raise ChangeRefused(f"the patch changes {in_a_line(name)} through a link; fix: name the file itself")
            before[name] = self._unchanged(name)
        return self._change("patch", applied(text, before, _mode_of_new_files(), strip))

    def files_of(self, patch: str | bytes) -> tuple[Path, ...]:
        """Returns the files that a patch changes, creates, renames or removes. Back them up before `apply_patch`."""
        _, pairs = self._named(os.fsdecode(patch) if isinstance(patch, bytes) else patch)
        return tuple(self._tree.top / name for name in dict.fromkeys(name for pair in pairs for name in pair))

    def revert_file(self, path: Path | str) -> str:
        """Restores the state of the file's last backup: bytes, mode, link or absence.

        Folders that the run created are removed if they are empty.
        """
        name = self._editable(path)
        return self._revert({name: self._known[name].backup})

    def revert_to(self, entry: str) -> str:
        """Restores all files to their state after ``entry``, in one step.

        Raises `FileChanged` if the user's own change of a file would be lost.
        """
        earlier: Mapping[str, KnownFile] = {}
        for each in self._entries:
            earlier = folded(earlier, each.record)
            if each.id == entry:
                break
        else:
            raise ChangeRefused(f"{entry[:12]} is no entry of run {self.run}")
        states = {name: earlier[name].now if name in earlier else file.was for name, file in self._known.items()}
        for name, file in earlier.items():
            if file.was != self._known[name].was:
                raise FileChanged(f"{in_a_line(name)} was changed by another program after that step")
        return self._revert(states)

    def revert_all(self) -> str:
        """Restores all files of the run as the user left them, in one step. This undoes the run.

        Raises `ChangeRefused` if the run has recorded nothing.
        """
        if not self._known:
            raise ChangeRefused(f"run {self.run} has changed no file of {self.root}")
        return self._revert({name: file.was for name, file in self._known.items()})

    def recover(self) -> Recovered:
        """Restores the files of an unfinished entry. `open` calls this; it can be called at any time."""
        self._store.unlock()
        self._read()
        entry = self._store.unfinished()
        if entry is None or entry.record.worktree != self._store.worktree:
            return Recovered()
        put_back: list[Path] = []
        left: list[Path] = []
        for number, step in entry.record.in_order(undo=True):
            done = self._put_back(step, temporary_name(entry.id, number))
            (put_back if done else left).append(self._tree.top / step.name)
        self._remove_made_folders([*self._entries, entry])
        self._store.intend(self._head)
        return Recovered(entry.id, tuple(put_back), tuple(left))

    def _put_back(self, step: FileStep, temporary: str) -> bool:
        """Undoes the step of one file, if the step was done. Returns False if another program has changed the file."""
        self._tree.discard(step.name, temporary)
        try:
            found = self._tree.read(step.name)
            state = self._store.state_of(found)
            if state == step.after:
                self._tree.replace(step.name, found, self._store.content_of(step.before), temporary)
            return state in (step.before, step.after)
        except FileChanged:
            return False

    def _revert(self, states: Mapping[str, FileState]) -> str:
        for name in states:
            self._unchanged(name)
        changed = {name: state for name, state in states.items() if state != self._known[name].now}
        return self._change("revert", {name: self._store.content_of(state) for name, state in changed.items()})

    def _change(self, kind: EntryKind, wanted: Mapping[str, FileContent]) -> str:
        """Changes the files in one entry. Returns the last entry if there is nothing to change."""
        found = {name: self._unchanged(name) for name in wanted}
        wanted = {name: content for name, content in wanted.items() if content != found[name]}
        if not wanted:
            return self._head
        if kind != "revert":
            _require_writable(found, wanted)
        record = EntryRecord(kind, self._steps(wanted), self._missing_folders(wanted))
        entry = self._store.write(record, folded(self._known, record), self._head)
        try:
            self._store.intend(entry)
            for number, step in record.in_order(undo=False):
                self._tree.replace(step.name, found[step.name], wanted[step.name], temporary_name(entry, number))
            self._remove_made_folders(self._entries)
            self._store.finish(entry, self._head)
        except BaseException:
            self.recover()
            raise
        self._read()
        return entry

    def _steps(self, wanted: Mapping[str, FileContent]) -> tuple[FileStep, ...]:
        return tuple(FileStep(name, self._known[name].now, self._store.stored(to)) for name, to in wanted.items())

    def _missing_folders(self, wanted: Mapping[str, FileContent]) -> tuple[str, ...]:
        made = {folder for name, to in wanted.items() if to != ABSENT for folder in self._tree.missing_folders(name)}
        return tuple(sorted(made))

    def _remove_made_folders(self, entries: Iterable[JournalEntry]) -> None:
        """Removes the folders that these entries created and that are now empty, the innermost first."""
        for folder in sorted({folder for entry in entries for folder in entry.record.made}, reverse=True):
            self._tree.remove_folder(folder)

    def _editable(self, path: Path | str) -> str:
        name = self._tree.name(path)
        if name not in self._known:
            raise ChangeRefused(f"{in_a_line(name)} has no backup in run {self.run}; fix: call backup_file first")
        return name

    def _unchanged(self, name: str) -> FileContent:
        """Returns the file's content. Raises `FileChanged` if it differs from the last entry."""
        found = self._tree.read(name)
        if self._store.state_of(found) != self._known[name].now:
            raise FileChanged(
                f"{in_a_line(name)} was changed by another program, and was not restored; fix: start again from the "
                f"file as it is now, or look at the recorded one: "
                f"{self._git} show {self._head[:12]}:now/{in_a_line(name)}"
            )
        return found

    def _named(self, patch: str) -> tuple[int | None, tuple[tuple[str, str], ...]]:
        """Returns how many leading folders to remove from the names of a patch, and its old and new names.

        The number is 0 for a patch without git's prefixes ``a/`` and ``b/``.
        """
        guessed = patched_names(patch)
        try:
            whole = patched_names(patch, 0)
        except ChangeRefused:
            return None, guessed
        there = [sum(os.path.lexists(self._tree.top / old) for old, _ in pairs) for pairs in (guessed, whole)]
        return (0, whole) if there[1] > there[0] else (None, guessed)

    def _read(self) -> None:
        """Reads the finished entries."""
        self._head = self._store.head()
        self._entries, self._known = self._store.entries(self._head), {}
        for each in self._entries:
            self._known = folded(self._known, each.record)


def temporary_name(entry: str, number: int) -> str:
    """Returns the name of the temporary file for a file of an entry, in the same folder."""
    return f".tilewright-{entry[:16]}-{number}"


def _common(git: Git) -> str:
    return os.path.realpath(git.folder / git.line("rev-parse", "--git-common-dir"))


def _encoded(path: Path | str, text: str | bytes) -> bytes:
    try:
        return text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        found = f"U+{ord(error.object[error.start]):04X} at character {error.start}"
        raise ChangeRefused(f"the new text of {in_a_line(path)} has {found}, which UTF-8 cannot hold") from None


def _mode_of_new_files() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def _require_writable(found: Mapping[str, FileContent], wanted: Mapping[str, FileContent]) -> None:
    for name, content in found.items():
        if content.kind == "file" and not content.mode & stat.S_IWUSR:
            raise ChangeRefused(f"{in_a_line(name)} is read-only; fix: chmod u+w, if it may be changed")
        if name in wanted and len(wanted[name].data) > LARGEST:
            raise ChangeRefused(f"the new {in_a_line(name)} has more than the {LARGEST >> 20} MiB of a source file")
