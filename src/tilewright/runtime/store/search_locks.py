"""Search locks: for each key one thread of one process searches, and the others wait or go on.

There are two locks for a key: one of this process, between its threads, and `flock` on ``locks/<digest>.lock`` beside
the store, between processes. The operating system frees the second when its process ends, also after ``kill -9``, so
nothing has to be cleaned up. The holder removes the file when it gives the lock back.

If no file can be locked (a folder that cannot be written, a file system without locks), one warning says so. Every
process may then search, and the first that stores its winner wins. On NFS, `flock` works between machines since Linux
2.6.12, if the server's lock service runs; otherwise the same applies.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.errors import StorageError
from tilewright.runtime.store import winners
from tilewright.runtime.store.warn_once import warn_once

WAIT_SECONDS = 600.0
"""The longest wait for another process's search; searches that a program waits for take less."""
POLL_SECONDS = 0.02
NO_FILE = -1

_guard = threading.Lock()
_ours: dict[str, int] = {}
"""The paths that threads of this process hold → the locked file, or `NO_FILE` if no file can be locked."""
_forks = threading.Event()
"""Set once `_after_fork` is registered."""


@contextmanager
def search_lock(key: str, *, wait: bool, seconds: float = WAIT_SECONDS, folder: Path | None = None) -> Iterator[bool]:
    """True: only this thread may search for ``key`` until the block ends. False: another one holds the lock.

    ``wait``: ask again for up to ``seconds``. After a wait, look into the store first: the last holder has probably
    stored the winner. ``folder``: of the locks; by default beside the store.
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
    """Whether this thread now holds the lock."""
    with _guard:
        if not _forks.is_set():
            os.register_at_fork(after_in_child=_after_fork)
            _forks.set()
        if path in _ours:
            return False
        _ours[path] = NO_FILE
    taken = False
    try:
        taken = _locked(path)
    except OSError as error:
        warn_once(
            f"cannot lock files in {os.path.dirname(path)} ({error.strerror}): several processes may tune "
            f"one kernel at a time; fix: set {winners.VARIABLE} to a directory that you can write"
        )
        taken, _ours[path] = True, NO_FILE
    finally:
        if not taken:
            _ours.pop(path, None)
    return taken


def _locked(path: str) -> bool:
    import fcntl

    if not os.path.isabs(path):
        return True
    os.makedirs(os.path.dirname(path), exist_ok=True)
    opened = _ours[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    locked = False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(opened), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another; or removed by its holder between the last two lines
    finally:
        if not locked:
            _close(path)
    return locked


def _give_back(path: str) -> None:
    try:
        if _ours.get(path, NO_FILE) != NO_FILE:
            os.unlink(path)
    except OSError:
        pass  # a file that stays is not locked
    finally:
        _close(path)
        _ours.pop(path, None)


def _close(path: str) -> None:
    import fcntl

    opened = _ours.get(path, NO_FILE)
    if opened != NO_FILE:
        fcntl.flock(opened, fcntl.LOCK_UN)  # closing is not enough if a child has a copy
        _ours[path] = NO_FILE
        os.close(opened)


def _after_fork() -> None:
    """A child holds no lock. Its copies of the files would keep the parent's locks after the parent's end."""
    global _guard
    for opened in {*_ours.values()} - {NO_FILE}:
        os.close(opened)
    _ours.clear()
    _guard = threading.Lock()
