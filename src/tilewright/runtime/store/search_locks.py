"""Search locks: for each key, one thread of one process searches, and the others wait or go on.

A key has two locks. One is between the threads of this process. The other is between processes: `flock` on
``locks/<digest>.lock`` beside the store. The operating system frees the file lock when its process ends, also after
``kill -9``, so nothing has to be cleaned up. The holder removes the file when it releases the lock.

If no file can be locked (a read-only folder, a file system without locks, NFS without a lock service), one warning says
so. Every process may then search, and the first that stores its winner wins.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tilewright.errors import StorageError
from tilewright.runtime.store import winners
from tilewright.runtime.store.warn_once import warn_once

WAIT_SECONDS = 600.0
"""The longest wait for another process's search. Searches in the foreground take less."""
POLL_SECONDS = 0.02
NO_FILE = -1

_guard = threading.Lock()
_held_locks: dict[str, int] = {}
"""The locks that threads of this process hold: maps the path to the descriptor of the locked file. If no file is
locked, the descriptor is `NO_FILE`."""


@contextmanager
def search_lock(key: str, *, wait: bool, seconds: float = WAIT_SECONDS, folder: Path | None = None) -> Iterator[bool]:
    """Takes the lock of ``key`` for the ``with`` block. Yields True if this thread has the lock, False if another
    thread or process has it.

    Look into the store afterwards, because an earlier holder has probably stored the winner.
    wait: whether to try for up to ``seconds``.
    folder: the folder of the lock files; by default ``locks`` beside the store.
    """
    deadline = time.monotonic() + (seconds if wait else 0.0)
    path = _path(key, folder)
    while not (taken := _taken(path)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    try:
        yield taken
    finally:
        if taken:
            _give_back(path)


def _path(key: str, folder: Path | None) -> str:
    name = hashlib.sha256(key.encode()).hexdigest()
    try:
        return str((folder or winners.folder() / "locks") / f"{name}.lock")
    except StorageError as error:  # no home directory: only the threads of this process exclude each other
        warn_once(str(error))
        return name


def _taken(path: str) -> bool:
    """Tries to take the lock. Returns whether this thread holds it now."""
    with _guard:
        _watch_forks()
        if path in _held_locks:
            return False
        _held_locks[path] = NO_FILE
    taken = False
    try:
        taken = _locked(path)
    except OSError as error:
        warn_once(
            f"cannot lock files in {os.path.dirname(path)} ({error.strerror}): several processes may "
            f"tune the same kernel at once; fix: set {winners.VARIABLE} to a directory that you can write"
        )
        taken, _held_locks[path] = True, NO_FILE
    finally:
        if not taken:
            _held_locks.pop(path, None)
    return taken


def _locked(path: str) -> bool:
    import fcntl

    if not os.path.isabs(path):
        return True
    os.makedirs(os.path.dirname(path), exist_ok=True)
    opened = _held_locks[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    locked = False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(opened), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        pass  # another process holds it, or its holder removed the file between the last two lines
    finally:
        if not locked:
            _close(path)
    return locked


def _give_back(path: str) -> None:
    try:
        if _held_locks.get(path, NO_FILE) != NO_FILE:
            os.unlink(path)
    except OSError:
        pass  # a file that stays is not locked
    finally:
        _close(path)
        _held_locks.pop(path, None)


def _close(path: str) -> None:
    import fcntl

    opened = _held_locks.get(path, NO_FILE)
    if opened != NO_FILE:
        fcntl.flock(opened, fcntl.LOCK_UN)  # closing does not unlock if a child process has the file open
        _held_locks[path] = NO_FILE
        os.close(opened)


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """Drops all locks in a forked child. Its copies of the files would keep the locks after the parent's end."""
    global _guard
    for opened in {*_held_locks.values()} - {NO_FILE}:
        os.close(opened)
    _held_locks.clear()
    _guard = threading.Lock()
