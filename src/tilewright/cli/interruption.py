"""Handles Ctrl-C and SIGTERM: each ends a command with one line, at any moment.

This module imports little. A signal that arrives during the other imports is therefore handled, too.
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
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:  # `timeout` sends SIGTERM twice; the second must not stop the clean-up
            signal.signal(number, signal.SIG_IGN)
        received.append(number)
        silence()
        raise Signalled(number)

    def silence() -> None:
        warnings.simplefilter("ignore")
        sys.unraisablehook = ignored

    def ignored(unraisable: sys.UnraisableHookArgs) -> None:
        """Sends a signal that Python ignored again, a little later. Python ignores exceptions in destructors and
        callbacks, including interruptions."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt) and not ended:
            signal.signal(received[-1], interrupt)
            threading.Timer(AGAIN_SECONDS, again, received[-1:]).start()

    def again(number: int) -> None:
        if not ended:
            signal.pthread_kill(main_thread, number)

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
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)
        if received:
            silence()  # again, because the end of a `warnings.catch_warnings` restores the filters


def ending(received: Collection[int]) -> tuple[str, int]:
    """Returns the line and the exit code for a command that was ended by the signals in ``received``."""
    return ("terminated", TERMINATED) if signal.SIGTERM in received else ("interrupted", INTERRUPTED)
