"""The time limit of an iteration of `optimize`: one deadline for its build and its judgement, in any thread.

In the main thread, a signal interrupts the work. In another thread, an exception does so: it arrives between two
instructions of Python, so a call of C code ends first. What ends after the deadline counts as late in any case.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

clock = time.monotonic
ARRIVES = 8
"""An exception from another thread arrives within so many calls."""


class TimeUp(BaseException):
    """The time limit is over. This is not an Exception, so ``except Exception`` does not catch it."""


@dataclass(frozen=True)
class Deadline:
    """The end of an iteration, ``seconds`` after it began."""

    seconds: float
    began: float = field(default_factory=lambda: clock())

    @property
    def over(self) -> bool:
        return self._left <= 0

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raises `TimeUp` inside the block at the deadline, or at the end of the block if it was reached there."""
        if self.over:
            raise TimeUp
        with within(self._left):
            yield
        if self.over:
            raise TimeUp

    @property
    def _left(self) -> float:
        return self.began + self.seconds - clock()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises `TimeUp` inside the block after ``seconds``."""
    in_main = threading.current_thread() is threading.main_thread()
    with _interrupted_by_signal(seconds) if in_main else _interrupted_by_exception(seconds):
        yield


@contextmanager
def _interrupted_by_signal(seconds: float) -> Iterator[None]:
    def time_up(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    before, began = signal.signal(signal.SIGALRM, time_up), time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # the program's own timer goes on, and what it missed comes now
            signal.setitimer(signal.ITIMER_REAL, max(began + left - time.monotonic(), 1e-3), interval)


@contextmanager
def _interrupted_by_exception(seconds: float) -> Iterator[None]:
    thread, lock, ended, sent = ctypes.c_ulong(threading.get_ident()), threading.Lock(), threading.Event(), False

    def time_up() -> None:
        nonlocal sent
        with lock:
            if not ended.is_set():
                sent = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeUp))

    timer = threading.Timer(seconds, time_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            ended.set()
        # An exception that has not arrived yet arrives here. It must not be withdrawn: CPython 3.11 would then look for
        # it at every call, and never leave the first instruction of a function that is traced.
        for _ in range(ARRIVES if sent else 0):
            time.sleep(0)
