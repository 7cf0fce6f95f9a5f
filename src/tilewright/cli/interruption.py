"""Handles Ctrl-C and SIGTERM: each ends a command with one line, at any moment.

This module imports little. A signal that arrives during the other imports is therefore handled, too.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
LOOK_SECONDS = 0.1


class Signalled(KeyboardInterrupt):
    """A SIGINT or SIGTERM was received.

    This is a subclass of KeyboardInterrupt. If a plain KeyboardInterrupt leaves an ``exec``, Python ends itself with
    SIGINT instead of the exit code.
    """

    def __init__(self, number: int):
        word, self.code = ending((number,))
        super().__init__(word)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM ended a command. The message says which work was kept."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@contextmanager
def interruptible(received: list[int]) -> Iterator[None]:
    """Makes SIGTERM end a command as Ctrl-C does: finished work is kept, and child processes end.

    received: the list to which the number of each signal is appended. From the first signal on, this process prints no
        warnings and no ignored exceptions. Interrupted code causes both, for example a coroutine that is never awaited.

    Some code swallows the exception: Python itself in destructors and callbacks, some modules in C, every bare
    ``except``. Therefore a thread looks again until the block ends, and the exception is raised again where it is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = looks = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal looks
        look, looks = looks, False
        again = look or (number == signal.SIGTERM and number in received)  # `timeout` sends SIGTERM twice
        if ended or (again and _on_its_way()):  # the clean-up must not stop
            return
        silence()
        if not look:
            received.append(number)
            if len(received) == 1:  # a plain thread, because a signal may arrive while `threading` holds its locks
                _thread.start_new_thread(look_again, ())
        raise Signalled(number)

    def look_again() -> None:
        nonlocal looks
        while not ended:
            time.sleep(LOOK_SECONDS)
            looks = True
            signal.pthread_kill(main_thread, received[-1])

    main_thread = threading.get_ident()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):  # a background job ignores SIGINT
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:  # some C modules turn an interruption into another error
        if received:
            raise Signalled(received[-1]) from error
        raise
    finally:
        ended = True
        for number, handler in before.items():
            if number not in received and signal.getsignal(number) is interrupt:  # else a late look may still arrive
                signal.signal(number, handler)
        if received:
            silence()  # again, because the end of a `warnings.catch_warnings` restores the filters


def silence() -> None:
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None


def _on_its_way() -> bool:
    """Returns whether this thread handles a `Signalled`: it cleans up, or turns it into an `Interrupted`."""
    handled = sys.exc_info()[1]
    while handled is not None and not isinstance(handled, Signalled | Interrupted):
        handled = handled.__context__
    return handled is not None


def ending(received: Collection[int]) -> tuple[str, int]:
    """Returns the line and the exit code for a command that was ended by the signals in ``received``."""
    return ("terminated", TERMINATED) if signal.SIGTERM in received else ("interrupted", INTERRUPTED)
