"""Records what a program launches: a hook in the place of `ct.launch` counts launches, times a few, and makes them.

Of each kernel the first launches are looked at, then one of many (`kinds`); the others only pass through. A new
kind of launch is described once (`described`). After any error in here the launch is made as usual. `install` puts the
hook where the program finds `ct.launch`. `tilewright capture` sets TILEWRIGHT_CAPTURE, and Tilewright's start-up file
calls `install` when the program imports `cuda.tile`.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util  # cuda.tile imports it, too
from pathlib import Path
from time import perf_counter

from tilewright.errors import RequestError
from tilewright.runtime.capture.kinds import ALWAYS, EXACT
from tilewright.runtime.capture.recorder import Recorder
from tilewright.runtime.swapping import swap

VARIABLE = "TILEWRIGHT_CAPTURE"
"""Path of the record. If it is set, a program that imports `cuda.tile` is recorded."""
DATA_VARIABLE = "TILEWRIGHT_CAPTURE_DATA"
"""Mebibytes of data that may be kept beside the record; none if unset."""
EXACT_VARIABLE = "TILEWRIGHT_CAPTURE_EXACT"
"""1: every launch is looked at."""
SECONDS_BETWEEN_WRITES = 0.25, 5.0
"""At first and at most. A program that is killed loses the launches after the last write."""
INSIDE = "cuda.tile.", "cutile_cache", "tilewright."
"""Modules that keep the real `ct.launch`: those of cuda-tile, except the public one, and ours."""

_LOCK = threading.Lock()
_active: _Installed | None = None


def install(
    path: str | os.PathLike[str] | None = None, *, data_bytes: int | None = None, exact: bool | None = None
) -> None:
    """Records every launch of this process from now on, into a part beside ``path``.

    path: default $TILEWRIGHT_CAPTURE. data_bytes: of the arrays to keep; default $TILEWRIGHT_CAPTURE_DATA
    mebibytes, else none. exact: whether every launch is looked at; default $TILEWRIGHT_CAPTURE_EXACT, else not.
    Raises RequestError if no path is given or its folder cannot be written.
    """
    global _active
    import cuda.tile as ct

    where = path or os.environ.get(VARIABLE)
    if not where:
        raise RequestError(f"capture: say where to, e.g. {VARIABLE}=capture.json")
    if data_bytes is None:
        mebibytes = os.environ.get(DATA_VARIABLE, "") or "0"
        if not mebibytes.isdigit():
            raise RequestError(f"{DATA_VARIABLE}='{mebibytes}' is not a number of mebibytes, e.g. 256")
        data_bytes = int(mebibytes) << 20
    if exact is None:
        if (said := os.environ.get(EXACT_VARIABLE, "")) not in ("", "0", "1"):
            raise RequestError(f"{EXACT_VARIABLE}='{said}' is neither 1 nor 0")
        exact = said == "1"
    with _LOCK:
        if _active is not None:
            return
        file = Path(where).resolve()
        if not os.access(file.parent, os.W_OK):
            raise RequestError(f"capture: cannot write into {file.parent}; choose another place with --out")
        _active = _Installed(Recorder(ct.launch, file, data_bytes, exact=ALWAYS if exact else EXACT))


def uninstall() -> None:
    """Puts the real `ct.launch` back everywhere, and writes what was recorded."""
    global _active
    with _LOCK:
        installed, _active = _active, None
    if installed is not None:
        installed.remove()


@contextmanager
def capturing(path: str | os.PathLike[str], *, data_bytes: int = 0, exact: bool = False) -> Iterator[Recorder]:
    """Records the launches inside the block; the record is at ``path`` afterwards."""
    from tilewright.runtime.capture import record as capture_record

    install(path, data_bytes=data_bytes, exact=exact)
    assert _active is not None
    try:
        yield _active.recorder
    finally:
        uninstall()
        capture_record.merged(Path(path).resolve())


class _Installed:
    """The hook in the place of `ct.launch`, and the thread and finalizers that write its record."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.stop = threading.Event()
        swap(recorder.original, recorder.launch, INSIDE)
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._in_child)
        self._finish_worker()  # of a worker that imports cuda.tile while it runs
        util.register_after_fork(self, _Installed._finish_worker)  # a worker forgets all finalizers when it starts
        self._start_writing()

    def remove(self) -> None:
        swap(self.recorder.launch, self.recorder.original, INSIDE)
        atexit.unregister(self.finish)
        self.finish()

    def finish(self) -> None:
        """Writes the last record of this process; only the first call does."""
        self.stop.set()
        self.recorder.begun.set()
        self.recorder.write(finished=True)

    def _start_writing(self) -> None:
        """Writes from a thread, not in a SIGTERM handler: Python runs handlers only in the main thread, and not while
        that waits in C, for example for a GPU that hangs."""
        stop, begun = self.stop, self.recorder.begun

        def work() -> None:
            begun.wait()
            first = perf_counter()
            while not stop.is_set():
                before = perf_counter()
                self.recorder.write()
                now = perf_counter()
                stop.wait(pause(now - first, now - before))

        threading.Thread(target=work, name="tilewright-capture", daemon=True).start()

    def _in_child(self) -> None:
        """A forked process starts a part of its own, with a thread of its own."""
        if _active is not self:
            return
        self.stop = threading.Event()
        self.recorder.forget()
        self._start_writing()

    def _finish_worker(self) -> None:
        """A process that `multiprocessing` forked ends with `os._exit`: it runs finalizers, but not `atexit`."""
        util.Finalize(None, self.finish, exitpriority=-1000)  # after the program's own, which may launch


def pause(age: float, took: float) -> float:
    """Seconds until the next write, ``age`` seconds after the first launch, if the last write took ``took``. A worker
    that is killed early loses a fifth of its launches, and writing costs a program at most 1 %."""
    at_first, at_most = SECONDS_BETWEEN_WRITES
    return min(at_most, max(at_first, age / 4, took * 100))
