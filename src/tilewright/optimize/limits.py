"""A limit of wall time on work in this process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeUp(BaseException):
    """The time is over. Not an Exception, so that code that catches errors does not catch this."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises `TimeUp` inside the block after ``seconds``. By SIGALRM, which reaches the main thread only; elsewhere the
    block has no limit of its own, and the limits of its parts (compilers, kernels, checks) hold."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
