"""What runs left in Tilewright's folder and in the user's repository, and its removal.

A run that was killed leaves its worktree and its lock; if it was killed before its row was in the ledger, also a branch
and refs that nothing needs. `prune_killed` removes these at the start of each `tune`, `optimize` and `agent`. All else
is evidence or a result, and is removed only by choice (`tilewright clean`). A run that is in progress holds its lock,
and nothing of it is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tilewright.errors import MachineError
from tilewright.ledger.runs import LedgerFile
from tilewright.optimize.versions.entries import unfinished_runs
from tilewright.optimize.versions.locks import is_free
from tilewright.optimize.versions.repositories import run_refs, word
from tilewright.tools.git import Git, GitError

Kind: TypeAlias = Literal["killed", "refs", "branches", "written", "runs", "jobs", "repositories", "temporary"]
KINDS: dict[Kind, str] = {
    "killed": "what killed runs left: worktrees, locks, temporary folders, and branches and refs of runs without a row",
    "refs": "refs below refs/tilewright/ of finished runs: their attempts and journals, which git log --all shows",
    "branches": "branches of finished runs of optimize, with a commit for each kept change",
    "written": "task files and captured launches that agent and new made",
    "runs": "reports and patches of runs, compiled candidates of interrupted ones; the ledger keeps the rows",
    "jobs": "requests, results and logs of the jobs of coding agents",
    "repositories": "private repositories, for programs that are in no repository of yours",
    "temporary": "folders of Tilewright in the temporary folder that nothing has changed for a day",
}
FOLDERS: dict[Kind, tuple[str, ...]] = {
    "written": ("written", "captured"), "runs": ("runs", "profiles", "proposals", "brought", "ledger.compiled"),
    "jobs": ("jobs",), "repositories": ("repositories",),
}  # fmt: skip
DAY = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """One thing that can be removed. ``path``: of a folder or a file. ``refs``: of the repository at ``repository``."""

    kind: Kind
    name: str
    bytes: int = 0
    path: str = ""
    repository: str = ""
    refs: tuple[str, ...] = ()


def leftovers(folder: Path, home: Path) -> Iterator[Leftover]:
    """Yields everything that can be removed: in the repository of ``folder``, in ``home``, in the temporary folder."""
    yield from _killed_runs(folder, home)
    git, known = _repository(folder), _known_runs(home)
    held, killed = _worktrees(home)
    for run in _runs_with_refs(git) if git is not None else ():
        if git is not None and run not in held and (run in known or run not in killed):
            yield from _refs_of(git, "refs", run)
            yield from (each for each in _branches_of(git, "branches", run) if each.refs[0] not in _in_use(git, home))
    for kind, names in FOLDERS.items():
        for name in names:
            for path in sorted((home / name).glob("[!.]*")) if (home / name).is_dir() else ():
                if path.name not in held:
                    yield Leftover(kind, f"{name}/{path.name}", _bytes(path), str(path))
    yield from _temporary()


def prune_killed(folder: Path, home: Path) -> tuple[Leftover, ...]:
    """Removes what killed runs left in ``home`` and in the repository of ``folder``. A run that can be resumed keeps
    its branch and its refs. Returns what was removed. A problem is left for the next time."""
    removed = []
    with suppress(MachineError, OSError):
        for each in [*_killed_runs(folder, home), *(each for each in _temporary() if each.kind == "killed")]:
            remove(each)
            removed.append(each)
    return tuple(removed)


def _killed_runs(folder: Path, home: Path) -> tuple[Leftover, ...]:
    _, killed = _worktrees(home)
    if not killed:
        return ()
    git, known = _repository(folder), _known_runs(home)
    found = [each for run in sorted(killed) for each in _killed(home, run)]
    if git is not None:
        found += [each for run in sorted(killed - known) for each in _refs_of(git, "killed", run)]
    return tuple(found)


def remove(leftover: Leftover) -> None:
    """Removes it. Raises OSError or MachineError if that fails."""
    if leftover.refs:
        commands = "".join(f"delete {ref}\n" for ref in leftover.refs)
        Git(Path(leftover.repository))("update-ref", "--stdin", stdin=commands)
    if leftover.path:
        path = Path(leftover.path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if leftover.repository:
            Git(Path(leftover.repository))("worktree", "prune")


def _worktrees(home: Path) -> tuple[set[str], set[str]]:
    """Returns the runs that are in progress, and those that left a worktree or a lock but hold no lock."""
    held, killed = set[str](), set[str]()
    for path in (home / "worktrees").glob("[!.]*"):
        run = path.name.removesuffix(".lock")
        (killed if is_free(path.with_name(f"{run}.lock")) else held).add(run)
    return held, killed


def _killed(home: Path, run: str) -> Iterator[Leftover]:
    folder = home / "worktrees" / run
    if folder.exists():
        repository = _repository_of_worktree(folder)
        yield Leftover("killed", f"worktree of run {run}", _bytes(folder), str(folder), repository)
    lock = folder.with_name(f"{run}.lock")
    if lock.exists():
        yield Leftover("killed", f"lock of run {run}", 0, str(lock))


def _refs_of(git: Git, kind: Kind, run: str) -> Iterator[Leftover]:
    """Yields the refs of a run. Of a run without a row, also its branch, which still is at the untouched code."""
    refs = git("for-each-ref", "--format=%(refname)", f"{run_refs(run)}/").split()
    if kind == "killed":
        if _changed_files(git, run):
            refs = [ref for ref in refs if "/journal/" not in ref]
        yield from _branches_of(git, kind, run)
    if refs:
        yield Leftover(kind, f"{len(refs)} refs of run {run}", repository=str(git.folder), refs=tuple(refs))


def _changed_files(git: Git, run: str) -> bool:
    """Returns whether the journal of a run is needed to restore files of the user."""
    head = f"{run_refs(run)}/journal/head"
    was, now = (git.line_or_none("rev-parse", "--verify", "--quiet", f"{head}:{name}") for name in ("was", "now"))
    return was != now or run in unfinished_runs(git)


def _branches_of(git: Git, kind: Kind, run: str) -> Iterator[Leftover]:
    prefix = f"{run_refs(run)}/branch/"
    for line in git("for-each-ref", "--format=%(objectname) %(refname)", prefix).splitlines():
        base, _, ref = line.partition(" ")
        branch = f"refs/heads/{ref.removeprefix(prefix)}"
        at = git.line_or_none("rev-parse", "--verify", "--quiet", branch)
        if at is not None and (kind != "killed" or at == base):
            name = branch.removeprefix("refs/heads/")
            yield Leftover(kind, f"branch {name}", repository=str(git.folder), refs=(branch,))


def _in_use(git: Git, home: Path) -> set[str]:
    """Returns the branches that are checked out in the user's own worktrees."""
    blocks = [dict(line.partition(" ")[::2] for line in block.splitlines())
              for block in git("worktree", "list", "--porcelain").split("\n\n")]  # fmt: skip
    own = [block for block in blocks if not Path(block.get("worktree", "/")).is_relative_to(home / "worktrees")]
    return {block["branch"] for block in own if "branch" in block}


def _temporary() -> Iterator[Leftover]:
    for path in Path(tempfile.gettempdir()).glob("tilewright-*"):
        with suppress(OSError):
            status = path.lstat()
            if path.is_dir() and status.st_uid == os.getuid() and time.time() - status.st_mtime > DAY:
                kind: Kind = "killed" if _owner_ended(path.name) else "temporary"
                yield Leftover(kind, str(path), _bytes(path), str(path))


def _owner_ended(name: str) -> bool:
    """Returns whether the process that made this `workplace` has ended. False if the name has no process."""
    found = re.fullmatch(r"tilewright-([0-9]+)-[0-9a-f]+", name)
    if found is None:
        return False
    try:
        os.kill(int(found[1]), 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, PermissionError)
    return False


def _known_runs(home: Path) -> set[str]:
    with LedgerFile(home / "ledger.db") as ledger:
        return set(map(word, ledger.names()))


def _runs_with_refs(git: Git) -> list[str]:
    refs = git("for-each-ref", "--format=%(refname)", "refs/tilewright").splitlines()
    return sorted({ref.split("/")[2] for ref in refs})


def _repository(folder: Path) -> Git | None:
    with suppress(GitError):
        return Git(Path(Git(folder).line("rev-parse", "--show-toplevel")))
    return None


def _repository_of_worktree(folder: Path) -> str:
    """Returns the checkout or the bare repository that the worktree belongs to; "" if it is damaged."""
    with suppress(MachineError, OSError):
        common = Git(folder, {"GIT_CEILING_DIRECTORIES": str(folder.parent)}).line("rev-parse", "--git-common-dir")
        path = Path(os.path.join(folder, common)).resolve()
        return str(path.parent if path.name == ".git" else path)
    return ""


def _bytes(path: Path) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total or (path.stat().st_size if path.is_file() else 0)
