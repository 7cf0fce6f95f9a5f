"""The workspace of one run of `optimize`: a git worktree below Tilewright's home, with its own branch.

* The user's checkout, index, stash and untracked files are only read. The run adds to the user's repository a
  branch ``<language>-perf-<kernel>-<date>``, and refs under ``refs/tilewright/<run>/``: ``branch/<name>`` (the baseline
  commit), ``kept`` (the last kept commit) and ``<n>`` (each attempt). A run that changes nothing leaves no branch.
* An attempt is committed before it is judged. A revert removes the commit from the branch; its ref stays.
* Only git restores files. After a kill, `Workspace.open` for the same run goes back to ``kept``. The caller writes its
  ledger first and calls `keep` or `revert` afterwards. After a kill, the caller may call `keep` or `revert` again with
  the ledger's commit.
* Every git command names its worktree. Otherwise git could find the user's checkout above a damaged worktree,
  and reset that checkout.
"""

from __future__ import annotations

import datetime
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tilewright.candidate.client import Forbidden
from tilewright.errors import MachineError
from tilewright.ledger.file import storage
from tilewright.optimize.versions.locks import release, run_lock
from tilewright.optimize.versions.repositories import RepositoryPlace, place_of, run_refs, word
from tilewright.optimize.versions.version import read_source
from tilewright.task.loading import editable_files
from tilewright.task.task import Task
from tilewright.tools.git import Git, GitError

ON_DISK = "Iteration 0: the files as they are on disk"
NOTHING_YET = "Nothing was committed yet"


class PathGate(Forbidden):
    """A file that is not one of the task's editable files was changed."""


@dataclass(frozen=True)
class _Branch:
    name: str
    base: str


class Workspace:
    """The worktree of one run. `open` makes the worktree; the end of the ``with`` block removes it.

    base_commit: the commit with the untouched files.
    kept: the commit of the incumbent.
    folder: the worktree.
    """

    def __init__(self, run: str, place: RepositoryPlace, git: Git, branch: _Branch, lock: IO[bytes]) -> None:
        self.run, self.place, self.folder = run, place, git.folder
        self.branch, self.base_commit = branch.name, branch.base
        self._git, self._lock, self._forgotten, self._dropped = git, lock, False, False
        self.kept = git.line("rev-parse", "--verify", f"{run_refs(run)}/kept")

    @classmethod
    def open(
        cls, task: Task, run: str, home: Path, date: datetime.date, language: str = "cutile"
    ) -> Workspace:  # fmt: skip
        """Opens the workspace of ``run``: on a new branch, or on its own branch if the run was interrupted.

        home: Tilewright's folder, with worktrees and private repositories.
        date, language: used in a new branch's name. ``language``: the name of the kernel's language.
        Raises MachineError if git fails, StorageError if the disk fails, TaskError if an editable file cannot be read.
        """
        files, kernel = editable_files(task), word(task.name)
        texts = {path: read_source(path) for path in files}
        with storage(home):
            home = home.absolute()
            lock = run_lock(home, run)
            folder = home / "worktrees" / word(run)
            try:
                place = place_of(tuple(texts), kernel, home)
                branch = _branch_of(place.git, run)
                if branch is None:
                    git, branch = _started(place, run, folder, f"{word(language)}-perf-{kernel}-{date:%Y-%m-%d}")
                else:
                    git = _resumed(place.git, run, folder, branch)
                return cls(run, place, git, branch, lock)
            except BaseException:
                lock.close()
                raise

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def kernel(self) -> str:
        """The kernel's name in the form used in the branch's name."""
        return re.sub(r"^.*?-perf-|-\d{4}-\d\d-\d\d(-\d+)?$", "", self.branch)

    def texts(self, commit: str | None = None) -> Mapping[Path, str]:
        """Returns the source texts of a commit, by the path of the user's file. Default: the incumbent's."""
        at, names = commit or self.kept, self.place.names
        return {path: self._git("cat-file", "--filters", f"{at}:{name}") for path, name in names.items()}

    def write_and_commit(self, n: int, texts: Mapping[Path, str], message: str) -> str:
        """Writes ``texts``, commits them on top of the incumbent, and returns the commit.

        If a file that is not editable differs, restores the worktree and raises PathGate.
        """
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
        """Makes the commit the incumbent."""
        if self._git.line_or_none("merge-base", "--is-ancestor", self.base_commit, commit) is None:
            raise ValueError(f"{commit[:12]} is no commit of branch {self.branch}")
        self._point("kept", commit)
        self.kept = commit
        if self._head() != commit:
            self._restore()

    def revert(self, n: int, commit: str) -> None:
        """Goes back to the incumbent. The attempt's ``commit`` stays reachable as ``refs/tilewright/<run>/<n>``."""
        self._point(str(n), commit)
        self._restore()

    def patch(self, commit: str | None = None) -> str:
        """Returns all kept changes as one patch, for ``git apply`` or ``patch -p1`` in `place.root`.

        commit: only the changes up to this commit.
        """
        return self._difference(self.base_commit, commit or self.kept)

    def diff(self, commit: str) -> str:
        """Returns the patch of one commit."""
        return self._difference(f"{commit}^", commit)

    def forget(self) -> None:
        """Makes `close` also remove the branch and the refs, because the ledger has no row of this run."""
        self._forgotten = True

    def drop_branch(self) -> None:
        """Makes `close` also remove the branch, because the run has ended without a change. The attempts' refs stay."""
        self._dropped = True

    def close(self) -> None:
        """Removes the worktree. The branch stays at the last kept commit, or at the baseline."""
        if self._lock.closed:
            return
        try:
            self._restore()
            _discard(self.place.git, self.folder)
            if self._forgotten:
                refs = self.place.git("for-each-ref", "--format=%(refname)", f"{run_refs(self.run)}/").split()
                gone = "".join(f"delete {ref}\n" for ref in (*refs, f"refs/heads/{self.branch}"))
                self.place.git("update-ref", "--stdin", stdin=gone)
            elif self._dropped and self.place.git.line_or_none("branch", "--quiet", "-D", self.branch) is not None:
                self.place.git("update-ref", "-d", f"{run_refs(self.run)}/branch/{self.branch}")
        finally:
            release(self._lock)

    def _head(self) -> str:
        return self._git.line("rev-parse", "--verify", "HEAD")

    def _point(self, name: str, commit: str) -> None:
        self._git("update-ref", f"{run_refs(self.run)}/{name}", commit)

    def _restore(self) -> None:
        _reset(self._git, self.kept)

    def _gate(self, changed: list[str]) -> None:
        allowed = {"", *self.place.names.values()}
        _refuse([name for name in changed if name not in allowed])

    def _as_checked_out(self, name: str) -> bool:
        """Returns whether a file is unchanged since the checkout. Because of line ends, git may report such a file as
        changed."""
        try:
            stored = self._git("cat-file", "--filters", f"HEAD:{name}")
            return (self.folder / name).read_bytes() == stored.encode(errors="surrogateescape")
        except (GitError, OSError):
            return False

    def _difference(self, old: str, new: str) -> str:
        options = ("-r", "-p", "--text", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        return self._git("diff-tree", *options, old, new, "--", *self.place.names.values())


def _started(place: RepositoryPlace, run: str, folder: Path, name: str) -> tuple[Git, _Branch]:
    """Makes a new worktree and branch. The refs are written last and together, because they mark a run as resumable."""
    repository = place.git.with_author()
    start = repository.line_or_none("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if start is None:
        empty_tree = repository.line("hash-object", "-t", "tree", "-w", "--stdin")
        start = repository.line("commit-tree", empty_tree, stdin=NOTHING_YET)
    _discard(repository, folder)
    repository("worktree", "add", "--detach", str(folder), start)
    git = repository.worktree(folder)
    for path, name_inside in place.names.items():
        copy = folder / name_inside
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copyfile if copy.exists() else shutil.copy)(path, copy)
    base = _commit(git, list(place.names.values()), ON_DISK) if _changed(git) else start
    branch = _Branch(_claimed(git, run, name, base), base)
    git("symbolic-ref", "HEAD", f"refs/heads/{branch.name}")
    return git, branch


def _claimed(git: Git, run: str, stem: str, base: str) -> str:
    """Makes the branch and the run's refs together. Returns the branch's name: ``stem``, or ``stem`` and a number if
    taken."""
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}-{number}"
        refs = (f"refs/heads/{name}", f"{run_refs(run)}/branch/{name}", f"{run_refs(run)}/kept")
        if not git("for-each-ref", refs[0]):
            try:
                git("update-ref", "--stdin", stdin="".join(f"create {ref} {base}\n" for ref in refs))
                return name
            except GitError:
                if not git("for-each-ref", refs[0]):  # no other run has made the branch meanwhile
                    raise
        number += 1


def _branch_of(git: Git, run: str) -> _Branch | None:
    """Returns the run's branch; None for a new run."""
    prefix = f"{run_refs(run)}/branch/"
    refs = git("for-each-ref", "--format=%(objectname) %(refname)", prefix).splitlines()
    if not refs or git.line_or_none("rev-parse", "--verify", "--quiet", f"{run_refs(run)}/kept") is None:
        return None
    base, _, name = refs[0].partition(" ")
    return _Branch(name.removeprefix(prefix), base)


def _resumed(repository: Git, run: str, folder: Path, branch: _Branch) -> Git:
    """Restores the run's worktree to the run's last kept commit, whatever its present state."""
    head, kept = f"refs/heads/{branch.name}", repository.line("rev-parse", "--verify", f"{run_refs(run)}/kept")
    _unlock(repository, head, run)
    at = repository.line_or_none("rev-parse", "--verify", "--quiet", head)
    if at is None:
        repository("update-ref", head, kept)
    elif at != kept:  # an undecided attempt, or commits of the user: a ref keeps them
        repository("update-ref", f"{run_refs(run)}/undecided", at)
    try:
        git = repository.worktree(folder)
    except MachineError:
        _discard(repository, folder)
        repository("worktree", "add", str(folder), branch.name)
        git = repository.worktree(folder)
    for left in ("index.lock", "HEAD.lock"):
        Path(git.variables["GIT_DIR"], left).unlink(missing_ok=True)
    git("symbolic-ref", "HEAD", head)
    _reset(git, kept)
    return git


def _unlock(repository: Git, head: str, run: str) -> None:
    """Removes the locks that a killed git process left on this run's refs."""
    common = repository.folder / repository.line("rev-parse", "--git-common-dir")
    common.joinpath(f"{head}.lock").unlink(missing_ok=True)
    for left in common.joinpath(run_refs(run)).rglob("*.lock"):
        left.unlink(missing_ok=True)


def _reset(git: Git, commit: str) -> None:
    git("reset", "--hard", "--quiet", commit)
    git("clean", "-ffdq")


def _discard(repository: Git, folder: Path) -> None:
    """Removes a worktree, even a damaged one."""
    remove = ("worktree", "remove", "--force", "--force", str(folder))
    if repository.line_or_none(*remove) is None:
        shutil.rmtree(folder, ignore_errors=True)
        repository.line_or_none(*remove)  # git removes a damaged worktree from its list only if its folder is gone


def _changed(git: Git) -> list[str]:
    """Returns the paths that differ from the worktree's commit, including untracked files."""
    entries = git("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all").split("\0")
    return [entry[3:] for entry in entries if entry]


def _commit(git: Git, names: list[str], message: str) -> str:
    """Commits only these files. An attempt without changes is also committed."""
    git("add", "--force", "--", *names)
    git("commit", "--allow-empty", "--quiet", "--no-verify", "--cleanup=verbatim", "--file=-", stdin=message)
    return git.line("rev-parse", "--verify", "HEAD")


def _refuse(others: list[str]) -> None:
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise PathGate(f"changed outside the task's editable files: {', '.join(others[:3])}{more}")
