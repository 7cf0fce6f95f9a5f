"""A lock file that one process holds. The system releases the lock when the process and its git commands have ended.

A run of `optimize` or `agent` holds ``worktrees/RUN.lock`` in Tilewright's folder (`run_lock`). So `leftovers` knows
which runs are in progress, and which were killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tilewright.errors import MachineError
from tilewright.ledger.file import make_private
from tilewright.optimize.versions.repositories import word

LOCK_SECONDS = 1.0
"""Seconds to wait for a lock. A git command that a killed run started may hold the lock until it ends."""


def locked(path: Path, holder: str, busy: str) -> IO[bytes]:
    """Takes the lock and writes ``holder`` into its file. Raises MachineError if another process has the lock.

    busy: the error's message. ``{holder}`` in it is replaced by the text that the other process wrote into the file.
    """
    until = time.monotonic() + LOCK_SECONDS
    while True:
        lock = path.open("a+b")
        if _taken(lock) and _is(lock, path):
            lock.truncate(0)
            lock.write(holder.encode(errors="replace"))
            lock.flush()
            return lock
        lock.close()
        if time.monotonic() > until:
            raise MachineError(busy.replace("{holder}", _holder(path)))
        time.sleep(0.02)


def run_lock(home: Path, run: str) -> IO[bytes]:
    """Takes the lock of a run. Raises MachineError if the run is in progress in another process."""
    return locked(worktrees(home) / f"{word(run)}.lock", run, f"run {run} is in progress in another process")


@contextmanager
def in_progress(home: Path, run: str) -> Iterator[None]:
    """Holds the lock of a run."""
    lock = run_lock(home, run)
    try:
        yield
    finally:
        release(lock)


def worktrees(home: Path) -> Path:
    """Makes the folder of the worktrees. If the folder is in the user's checkout, git ignores it."""
    make_private(home)
    folder = home / "worktrees"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder


def is_free(path: Path) -> bool:
    """Returns whether no process has the lock. Does not make the file."""
    try:
        with path.open("rb") as lock:
            return _taken(lock)
    except FileNotFoundError:
        return True


def release(lock: IO[bytes]) -> None:
    """Removes the file and releases the lock."""
    Path(lock.name).unlink(missing_ok=True)
    lock.close()


def _taken(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _is(lock: IO[bytes], path: Path) -> bool:
    """Returns whether ``path`` is still this file. The previous holder of the lock removes its file at the end."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace") or "another process"
    except OSError:
        return "another process"
