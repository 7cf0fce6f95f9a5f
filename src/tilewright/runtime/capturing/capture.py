"""Recording what a program launches: a stand-in for `ct.launch` that counts, times a few, and calls the real one.

A launch that was seen before costs a key, a look into a dictionary and a count: one or two microseconds. What is
new is described once (`described`). Whatever goes wrong in here, the launch is made as if nobody looked.
`install` puts the stand-in where the program finds `ct.launch`; `tilewright capture` sets TILEWRIGHT_CAPTURE,
and Tilewright's start-up file calls `install` when the program imports `cuda.tile`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.errors import RequestError
from tilewright.runtime.capturing.recorder import Recorder

VARIABLE = "TILEWRIGHT_CAPTURE"
"""Path of the record; set, a program that imports `cuda.tile` is recorded."""
DATA_VARIABLE = "TILEWRIGHT_CAPTURE_DATA"
"""Mebibytes of data that may be kept beside the record; unset, none."""
SECONDS_BETWEEN_WRITES = 5.0

_LOCK = threading.Lock()
_active: _Installed | None = None


def install(path: str | os.PathLike[str] | None = None, *, data_bytes: int | None = None) -> None:
    """Records every launch of this process from now on, into a part beside ``path``.

    path: default $TILEWRIGHT_CAPTURE. data_bytes: of the arrays to keep; default $TILEWRIGHT_CAPTURE_DATA
    mebibytes, else none. Raises RequestError where no path is given or its folder cannot be written.
    """
    global _active
    import cuda.tile as ct

    where = path or os.environ.get(VARIABLE)
    if not where:
        raise RequestError(f"capture: say where to, e.g. {VARIABLE}=capture.json")
    limit = _data_bytes() if data_bytes is None else data_bytes
    with _LOCK:
        if _active is not None:
            return
        file = Path(where).resolve()
        if not os.access(file.parent, os.W_OK):
            raise RequestError(f"capture: cannot write into {file.parent}; choose another place with --out")
        recorder = Recorder(ct.launch, file, limit)
        _active = _Installed(recorder, ct.launch)


def uninstall() -> None:
    """Puts the real `ct.launch` back everywhere, and writes what was recorded."""
    global _active
    with _LOCK:
        installed, _active = _active, None
    if installed is not None:
        installed.remove()


@contextmanager
def capturing(path: str | os.PathLike[str], *, data_bytes: int = 0) -> Iterator[Recorder]:
    """Records the launches inside the block; the record is at ``path`` afterwards."""
    from tilewright.runtime.capturing import record as capture_record

    install(path, data_bytes=data_bytes)
    assert _active is not None
    try:
        yield _active.recorder
    finally:
        uninstall()
        capture_record.merged(Path(path).resolve())


class _Installed:
    """The stand-in in place of `ct.launch`, and what sees to it that its record is written."""

    def __init__(self, recorder: Recorder, original: Callable[..., Any]) -> None:
        self.recorder, self.original, self.stand_in = recorder, original, recorder.launch
        self.stop = threading.Event()
        self.ended: Callable[[int, Any], None] | None = None
        """Our answer to SIGTERM."""
        _exchange(original, self.stand_in)
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._in_child)
        self._catch_termination()
        self._start_writing()

    def remove(self) -> None:
        _exchange(self.stand_in, self.original)
        atexit.unregister(self.finish)
        if self.ended is not None and signal.getsignal(signal.SIGTERM) is self.ended:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.finish()

    def finish(self) -> None:
        """The last word of this process."""
        self.stop.set()
        self.recorder.write(finished=True)

    def _start_writing(self) -> None:
        stop = self.stop

        def work() -> None:
            while not stop.wait(SECONDS_BETWEEN_WRITES):
                self.recorder.write()

        threading.Thread(target=work, name="tilewright-capture", daemon=True).start()

    def _in_child(self) -> None:
        """A forked process starts a part of its own; threads do not live on in it."""
        if _active is not self:
            return
        self.stop = threading.Event()
        self.recorder.forget()
        self._start_writing()

    def _catch_termination(self) -> None:
        """SIGTERM ends Python without `atexit`: write first, then end as it would have."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return  # the program has its own way to end

        def ended(number: int, frame: Any) -> None:
            self.finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        self.ended = ended
        signal.signal(signal.SIGTERM, ended)


def _exchange(old: Any, new: Any) -> None:
    """Every module's name for ``old`` becomes one for ``new``: `ct.launch`, and what was imported from there.
    cuda-tile's own modules but the public one keep the real one."""
    for name, module in list(sys.modules.items()):
        inside = name.startswith(("cuda.tile.", "cutile_cache", "tilewright."))
        if inside or module is None:
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, attribute, new)


def _data_bytes() -> int:
    text = os.environ.get(DATA_VARIABLE, "")
    if not text:
        return 0
    if not text.isdigit():
        raise RequestError(f"{DATA_VARIABLE}='{text}' is not a number of mebibytes, e.g. 256")
    return int(text) << 20
