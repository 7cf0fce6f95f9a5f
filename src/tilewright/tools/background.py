"""Computes a value in another thread, while its caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Begins to call ``work`` in a thread. Returns its future result, which raises what ``work`` raises.

    The thread is a daemon, so that an interrupted command does not wait for it.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # raised again in the caller's thread
            found.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return found
