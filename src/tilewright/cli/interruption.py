"""Ctrl-C and SIGTERM, which end a command with one line wherever they reach it.

This module imports little, so that a signal during the other imports is handled, too.
"""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
AGAIN_SECONDS = 0.01


class Signalled(KeyboardInterrupt):
    """A SIGINT or SIGTERM was received. It is no plain KeyboardInterrupt: after one of these has left an ``exec``,
    Python ends itself with SIGINT instead of the exit code."""

    def __init__(self, number: int):
        word, self.code = ending((number,))
        super().__init__(word)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM ended a command; the message says what happens to its work."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@contextmanager
def interruptible(received: list[int]) -> Iterator[None]:
    """Makes SIGTERM end a command as Ctrl-C does: finished work is kept, and child processes end.

    received: the number of each signal is appended. From the first signal on, this process prints no warning and no
    exception that Python ignores. Interrupted code causes both, for example a coroutine that is never awaited.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:  # `timeout` sends it twice; the second must not stop the clean-up
            signal.signal(number, signal.SIG_IGN)
        received.append(number)
        silence()
        raise Signalled(number)

    def silence() -> None:
        warnings.simplefilter("ignore")
        sys.unraisablehook = ignored

    def ignored(unraisable: sys.UnraisableHookArgs) -> None:
        """Python ignores an interruption in a destructor or a callback. So the signal is sent again after that."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt) and not ended:
            signal.signal(received[-1], interrupt)
            threading.Timer(AGAIN_SECONDS, again, received[-1:]).start()

    def again(number: int) -> None:
        if not ended:
            signal.pthread_kill(main_thread, number)

    main_thread = threading.get_ident()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):  # a job in the background ignores it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:  # modules in C make another error of an interruption
        if received:
            raise Signalled(received[-1]) from error
        raise
    finally:
        ended = True
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)
        if received:
            silence()  # again, since a `warnings.catch_warnings` that ended has restored the filters


def ending(received: Collection[int]) -> tuple[str, int]:
    """Returns the line and the exit code of a command that the signals ``received`` ended."""
    return ("terminated", TERMINATED) if signal.SIGTERM in received else ("interrupted", INTERRUPTED)
