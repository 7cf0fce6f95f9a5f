"""Where one run of `optimize` works: a git worktree on a branch of its own, below Tilewright's home.

* The user's checkout, index, stash and untracked files are only read. What is written into their repository
  is a branch, ``cutile-perf-<kernel>-<date>``, and refs under ``refs/tilewright/<run>/``:
  ``branch/<name>`` (the baseline commit), ``kept`` (the last kept commit) and ``<n>`` (each attempt).
* The commit comes before the decision, so a revert undoes a commit; its attempt stays reachable.
* Git is the only mechanism that restores files. After a kill, `Workspace.open` for the same run goes
  back to ``kept``. Who keeps a ledger writes it first and calls `keep` or `revert` then; after a kill
  both may be called again with the commit that the ledger names.
* Every git command of a worktree is pinned to it: a damaged worktree inside the user's checkout never
  makes git find, and reset, the user's.
"""

from __future__ import annotations

import datetime
import fcntl
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tilewright.errors import MachineError
from tilewright.ledger.file import storage
from tilewright.optimize.versions.git import Git, GitError
from tilewright.optimize.versions.repositories import RepositoryPlace, place_of
from tilewright.optimize.versions.version import Forbidden, read_source
from tilewright.task.loading import editable_files
from tilewright.task.task import Task

ON_DISK = "Iteration 0: the files as they are on disk"
NOTHING_YET = "Nothing was committed yet"
LOCK_SECONDS = 1.0
"""A run that was killed while it started git: that process is about to end, and has the lock until then."""


class PathGate(Forbidden):
    """Something else than the task's editable files was changed."""


@dataclass(frozen=True)
class _Branch:
    name: str
    base: str


class Workspace:
    """The worktree of one run; `open` makes it, and it is a context manager.

    branch, base_commit: the branch, and its commit with the untouched files.
    kept: the commit of the incumbent.
    folder: the worktree. place: the repository, and the files' names in it.
    """

    def __init__(self, run: str, place: RepositoryPlace, git: Git, branch: _Branch, lock: IO[bytes]) -> None:
        self.run, self.place, self.folder = run, place, git.folder
        self.branch, self.base_commit = branch.name, branch.base
        self._git, self._lock = git, lock
        self.kept = git.line("rev-parse", "--verify", f"{_refs(run)}/kept")

    @classmethod
    def open(cls, task: Task, run: str, home: Path, date: datetime.date) -> Workspace:
        """The workspace of ``run``: a new one on a new branch, or after an interruption the same again.

        home: Tilewright's folder, as `store.default_path` has it; worktrees and private repositories lie there.
        date: for the branch's name; a run that is resumed keeps the branch it has.

        Raises MachineError where git cannot, StorageError where the disk cannot, TaskError where an
        editable file cannot be read.
        """
        files, kernel = editable_files(task), _word(task.name)
        texts = {path: read_source(path) for path in files}
        with storage(home):
            home = home.absolute()
            folder = _worktrees(home) / _word(run)
            lock = _locked(folder.with_suffix(".lock"), run)
            try:
                place = place_of(tuple(texts), kernel, home)
                branch = _branch_of(place.git, run)
                if branch is None:
                    git, branch = _started(place, run, folder, f"cutile-perf-{kernel}-{date:%Y-%m-%d}")
                else:
                    git = _resumed(place.git, run, folder, branch)
                return cls(run, place, git, branch, lock)
            except BaseException:
                lock.close()
                raise

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *what: object) -> None:
        self.close()

    @property
    def kernel(self) -> str:
        """The kernel's name as the branch has it."""
        return re.sub(r"^cutile-perf-|-\d{4}-\d\d-\d\d(-\d+)?$", "", self.branch)

    @property
    def changes(self) -> int:
        """How many changes the branch holds over the baseline."""
        return int(self._git.line("rev-list", "--count", f"{self.base_commit}..{self.kept}"))

    def texts(self, commit: str | None = None) -> Mapping[Path, str]:
        """The editable files' text, by the user's path: the incumbent's, or that of ``commit``."""
        at = commit or self.kept
        return {path: self._git("cat-file", "--filters", f"{at}:{name}") for path, name in self.place.names.items()}

    def write_and_commit(self, n: int, texts: Mapping[Path, str], message: str) -> str:
        """One attempt as one commit on top of the incumbent; files that ``texts`` leaves out stay. Raises PathGate,
        with the worktree as before, if anything but the editable files differs."""
        if (head := self._head()) != self.kept:
            raise ValueError(f"{head[:12]} was neither kept nor reverted")
        _refuse([str(path) for path in texts if path not in self.place.names])
        with storage(self.folder):
            for path, text in texts.items():
                (self.folder / self.place.names[path]).write_bytes(text.encode())
        try:
            self._gate([name for name in _changed(self._git) if not self._as_checked_out(name)])
            commit = _commit(self._git, list(self.place.names.values()), message)
            self._gate(self._git("diff-tree", "-r", "-z", "--name-only", self.kept, commit).split("\0"))
        except BaseException:
            self._restore()
            raise
        self._point(str(n), commit)
        return commit

    def keep(self, commit: str) -> None:
        """The commit is the incumbent from now on."""
        if self._git.tells("merge-base", "--is-ancestor", self.base_commit, commit) is None:
            raise ValueError(f"{commit[:12]} is no commit of branch {self.branch}")
        self._point("kept", commit)
        self.kept = commit
        if self._head() != commit:
            self._restore()

    def revert(self, n: int, commit: str) -> None:
        """Back to the incumbent; the attempt stays reachable as ``refs/tilewright/<run>/<n>``."""
        self._point(str(n), commit)
        self._restore()

    def patch(self) -> str:
        """All kept changes as one patch, for ``git apply`` or ``patch -p1`` in `place.root`."""
        return self._difference(self.base_commit, self.kept)

    def diff(self, commit: str) -> str:
        """What one commit changed."""
        return self._difference(f"{commit}^", commit)

    def close(self) -> None:
        """Removes the worktree. The branch stays, at the last kept commit or else at the baseline."""
        if self._lock.closed:
            return
        try:
            self._restore()
            _discard(self.place.git, self.folder)
        finally:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()

    def _head(self) -> str:
        return self._git.line("rev-parse", "--verify", "HEAD")

    def _point(self, name: str, commit: str) -> None:
        self._git("update-ref", f"{_refs(self.run)}/{name}", commit)

    def _restore(self) -> None:
        _reset(self._git, self.kept)

    def _gate(self, changed: list[str]) -> None:
        allowed = {"", *self.place.names.values()}
        _refuse([name for name in changed if name not in allowed])

    def _as_checked_out(self, name: str) -> bool:
        """Git calls a file changed whose line ends it would store otherwise, though nobody touched it."""
        try:
            stored = self._git("cat-file", "--filters", f"HEAD:{name}")
            return (self.folder / name).read_bytes() == stored.encode(errors="surrogateescape")
        except (GitError, OSError):
            return False

    def _difference(self, old: str, new: str) -> str:
        options = ("-r", "-p", "--text", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        return self._git("diff-tree", *options, old, new, "--", *self.place.names.values())


def _started(place: RepositoryPlace, run: str, folder: Path, name: str) -> tuple[Git, _Branch]:
    """A new worktree and branch. Up to the refs, which come last and at once, nothing can be resumed."""
    repository = place.git.with_author()
    start = repository.tells("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if start is None:
        nothing = repository.line("hash-object", "-t", "tree", "-w", "--stdin")
        start = repository.line("commit-tree", nothing, stdin=NOTHING_YET)
    _discard(repository, folder)
    repository("worktree", "add", "--detach", str(folder), start)
    git = repository.pinned(folder).with_author()
    for path, inside in place.names.items():
        copy = folder / inside
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copyfile if copy.exists() else shutil.copy)(path, copy)
    base = start
    if _changed(git):
        base = _commit(git, list(place.names.values()), ON_DISK)
    branch = _Branch(_claimed(git, run, name, base), base)
    git("symbolic-ref", "HEAD", f"refs/heads/{branch.name}")
    return git, branch


def _claimed(git: Git, run: str, stem: str, base: str) -> str:
    """Makes the branch, under the first name that is free, and the run's refs: all of them or none."""
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}-{number}"
        refs = (f"refs/heads/{name}", f"{_refs(run)}/branch/{name}", f"{_refs(run)}/kept")
        if not git("for-each-ref", refs[0]):
            try:
                git("update-ref", "--stdin", stdin="".join(f"create {ref} {base}\n" for ref in refs))
                return name
            except GitError:
                if not git("for-each-ref", refs[0]):  # not another run that was faster
                    raise
        number += 1


def _branch_of(git: Git, run: str) -> _Branch | None:
    """The branch on which the run was begun, or None where it was not."""
    prefix = f"{_refs(run)}/branch/"
    found = git("for-each-ref", "--format=%(objectname) %(refname)", prefix).splitlines()
    if not found or git.tells("rev-parse", "--verify", "--quiet", f"{_refs(run)}/kept") is None:
        return None
    base, _, name = found[0].partition(" ")
    return _Branch(name.removeprefix(prefix), base)


def _resumed(repository: Git, run: str, folder: Path, branch: _Branch) -> Git:
    """The run's worktree at its last kept commit, whatever state a kill left it in."""
    head, kept = f"refs/heads/{branch.name}", repository.line("rev-parse", "--verify", f"{_refs(run)}/kept")
    _unlock(repository, head, run)
    at = repository.tells("rev-parse", "--verify", "--quiet", head)
    if at is None:
        repository("update-ref", head, kept)
    elif at != kept:  # an attempt that was never decided, or commits of the user's: not lost
        repository("update-ref", f"{_refs(run)}/undecided", at)
    try:
        git = repository.pinned(folder).with_author()
    except MachineError:
        _discard(repository, folder)
        repository("worktree", "add", str(folder), branch.name)
        git = repository.pinned(folder).with_author()
    for left in ("index.lock", "HEAD.lock"):
        Path(git.variables["GIT_DIR"], left).unlink(missing_ok=True)
    git("symbolic-ref", "HEAD", head)
    _reset(git, kept)
    return git


def _unlock(repository: Git, head: str, run: str) -> None:
    """Removes the locks that a killed git left on this run's own refs."""
    common = repository.folder / repository.line("rev-parse", "--git-common-dir")
    common.joinpath(f"{head}.lock").unlink(missing_ok=True)
    for left in common.joinpath(_refs(run)).rglob("*.lock"):
        left.unlink(missing_ok=True)


def _reset(git: Git, commit: str) -> None:
    git("reset", "--hard", "--quiet", commit)
    git("clean", "-ffdq")


def _discard(repository: Git, folder: Path) -> None:
    """Removes a worktree, and what is left of one."""
    remove = ("worktree", "remove", "--force", "--force", str(folder))
    if repository.tells(*remove) is None:
        shutil.rmtree(folder, ignore_errors=True)
        repository.tells(*remove)  # a damaged one is forgotten once its folder is gone


def _changed(git: Git) -> list[str]:
    """Paths that differ from the worktree's commit, untracked ones too."""
    entries = git("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all").split("\0")
    return [entry[3:] for entry in entries if entry]


def _commit(git: Git, names: list[str], message: str) -> str:
    """Commits these files alone; also an attempt that changes nothing is an iteration."""
    git("add", "--force", "--", *names)
    git("commit", "--allow-empty", "--quiet", "--no-verify", "--cleanup=verbatim", "--file=-", stdin=message)
    return git.line("rev-parse", "--verify", "HEAD")


def _refuse(strange: list[str]) -> None:
    if strange:
        more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
        raise PathGate(f"changed outside the task's editable files: {', '.join(strange[:3])}{more}")


def _refs(run: str) -> str:
    return f"refs/tilewright/{_word(run)}"


def _word(text: str) -> str:
    """What a branch and a folder may be called."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-") or "kernel"


def _worktrees(home: Path) -> Path:
    """The folder of the worktrees; if it lies in the user's checkout, it does not show there."""
    for name in ("worktrees", "repositories"):
        (home / name).mkdir(parents=True, exist_ok=True)
        (home / name / ".gitignore").write_text("*\n")
    return home / "worktrees"


def _locked(path: Path, run: str) -> IO[bytes]:
    """A lock that ends with this process, however it ends."""
    lock = path.open("ab")
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > until:
                lock.close()
                raise MachineError(f"run {run} is in progress in another process") from None
            time.sleep(0.02)
