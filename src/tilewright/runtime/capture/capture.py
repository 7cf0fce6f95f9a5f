"""Records the launches of a program: a hook for each language counts all launches and times a few.

The hook examines the first launches of each kernel and later a random sample (`kinds`). Other launches pass unexamined.
Each new kind of launch is described once (`described`). If recording fails, the launch is still made as usual.
`tilewright capture` sets TILEWRIGHT_CAPTURE. Then Tilewright's start-up file calls `install` on `import cuda.tile` and
on `import triton`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import util  # cuda.tile also imports it
from pathlib import Path
from time import perf_counter

from tilewright.errors import RequestError
from tilewright.runtime.capture.kinds import ALWAYS, EXACT
from tilewright.runtime.capture.language import CapturedLanguage
from tilewright.runtime.capture.languages import LANGUAGES
from tilewright.runtime.capture.recorder import Recorder

VARIABLE = "TILEWRIGHT_CAPTURE"
"""An environment variable: the path of the record. If it is set, a program that imports `cuda.tile` or `triton` is
recorded."""
DATA_VARIABLE = "TILEWRIGHT_CAPTURE_DATA"
"""An environment variable: the MiB of array data that may be kept beside the record. Default: none."""
EXACT_VARIABLE = "TILEWRIGHT_CAPTURE_EXACT"
"""An environment variable. If it is 1, every launch is examined; otherwise only a sample is."""
DESCRIBE_VARIABLE = "TILEWRIGHT_CAPTURE_DESCRIBE"
"""An environment variable. If it is 1, every launch is examined and recorded, but no kernel runs. So a program with CPU
tensors can be recorded without a GPU. The outputs of its kernels stay as they were before the launch."""
SECONDS_BETWEEN_WRITES = 0.25, 5.0
"""Shortest and longest time between two writes. A program that is killed loses the launches after the last write."""

_LOCK = threading.Lock()
_active: _Installed | None = None


def install(
    path: str | os.PathLike[str] | None = None, *, data_bytes: int | None = None, exact: bool | None = None
) -> None:
    """Starts recording every launch of this process, into a part file beside ``path``.

    Records the languages that the program has imported. A later call adds languages that were imported since then.
    Raises RequestError if there is no path, if its folder is not writable, or if one of the variables is wrong.
    path: default $TILEWRIGHT_CAPTURE.
    data_bytes: how much array data to keep; default: $TILEWRIGHT_CAPTURE_DATA MiB.
    exact: whether to examine every launch; default: $TILEWRIGHT_CAPTURE_EXACT.
    """
    global _active
    where = path or os.environ.get(VARIABLE)
    if not where:
        raise RequestError(f"capture: no file to write to; fix: set {VARIABLE}=capture.json")
    if data_bytes is None:
        mebibytes = os.environ.get(DATA_VARIABLE, "") or "0"
        if not mebibytes.isdigit():
            raise RequestError(f"{DATA_VARIABLE}='{mebibytes}' is not a number of mebibytes, e.g. 256")
        data_bytes = int(mebibytes) << 20
    if exact is None:
        if (setting := os.environ.get(EXACT_VARIABLE, "")) not in ("", "0", "1"):
            raise RequestError(f"{EXACT_VARIABLE}='{setting}' is neither 1 nor 0; 1 examines every launch")
        exact = setting == "1"
    describe = os.environ.get(DESCRIBE_VARIABLE, "") == "1"
    with _LOCK:
        if _active is not None:
            _active.add_languages()
            return
        file = Path(where).resolve()
        if not os.access(file.parent, os.W_OK):
            raise RequestError(f"capture: cannot write into {file.parent}; choose another folder with --out")
        _active = _Installed(
            Recorder(file, data_bytes, exact=ALWAYS if exact or describe else EXACT, describe=describe)
        )


def uninstall() -> None:
    """Stops recording. Writes the part file for the last time."""
    global _active
    with _LOCK:
        installed, _active = _active, None
    if installed is not None:
        installed.remove()


@contextmanager
def capturing(path: str | os.PathLike[str], *, data_bytes: int = 0, exact: bool = False) -> Iterator[Recorder]:
    """Records the launches inside the ``with`` block, in the languages that were imported before. Afterwards the record
    is at ``path``."""
    from tilewright.runtime.capture import record as capture_record

    install(path, data_bytes=data_bytes, exact=exact)
    assert _active is not None
    try:
        yield _active.recorder
    finally:
        uninstall()
        capture_record.merged(Path(path).resolve())


class _Installed:
    """The hooks of the languages, with the thread and the finalizers that write the record."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.stop = threading.Event()
        self.languages: list[CapturedLanguage] = []
        self.add_languages()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._in_child)
        self._finish_worker()  # for a worker process that imports cuda.tile while it runs
        util.register_after_fork(self, _Installed._finish_worker)  # a worker drops its finalizers when it starts
        self._start_writing()

    def add_languages(self) -> None:
        """Starts recording languages that the program has imported since recording began."""
        for language in LANGUAGES:
            if sys.modules.get(language.module) is not None and language not in self.languages:
                try:
                    language.start(self.recorder)
                except RequestError as error:
                    self.recorder.warn_once(str(error))
                else:
                    self.languages.append(language)

    def remove(self) -> None:
        for language in self.languages:
            language.stop()
        atexit.unregister(self.finish)
        self.finish()

    def finish(self) -> None:
        """Writes the part file of this process for the last time. Later calls do nothing."""
        self.stop.set()
        self.recorder.begun.set()
        self.recorder.write(finished=True)

    def _start_writing(self) -> None:
        """Starts the thread that writes. A SIGTERM handler would not suffice. Python runs handlers only in the main
        thread, and not while that thread waits in C code, for example for a GPU that hangs."""
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
        """Starts a new part file and a new thread in a forked process."""
        if _active is not self:
            return
        self.stop = threading.Event()
        self.recorder.forget()
        self._start_writing()

    def _finish_worker(self) -> None:
        """Registers `finish` as a finalizer, because processes that `multiprocessing` forks do not run `atexit`."""
        util.Finalize(None, self.finish, exitpriority=-1000)  # after the program's own finalizers, which may launch


def pause(age: float, took: float) -> float:
    """Returns the seconds until the next write. With this pause, writing takes at most 1 % of a program's time.

    A worker that is killed early loses about a fifth of its launches.

    age: seconds since the first launch.
    took: seconds of the last write.
    """
    at_first, at_most = SECONDS_BETWEEN_WRITES
    return min(at_most, max(at_first, age / 4, took * 100))
