"""Counts and times the steps of a program, from inside the program."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.errors import in_one_line

if TYPE_CHECKING:
    from torch.cuda import Event
    from torch.optim import Optimizer

TIMED_STEPS = 1000
"""The most steps that are timed."""


def guarded(act: Callable[[], None], what: str = "record a trace") -> None:
    """Calls ``act``. Prints an error in it, so that the user's program goes on. ``what``: the action, for the
    message."""
    try:
        act()
    except Exception as error:
        print(f"tilewright: cannot {what}: {in_one_line(error)}", file=sys.stderr, flush=True)


def on_each_step(act: Callable[[Optimizer], None]) -> None:
    """Calls ``act`` with the optimizer after each of its steps. Only the first optimizer that makes a step counts."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    first: list[int] = []

    def stepped(optimizer: Optimizer, *_: object) -> None:
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            act(optimizer)

    register_optimizer_step_post_hook(stepped)


def after_seconds(seconds: float, act: Callable[[], None]) -> None:
    """Calls ``act`` in the main thread after ``seconds``, unless the program uses SIGALRM itself."""
    if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        signal.signal(signal.SIGALRM, lambda *_: act())
        signal.setitimer(signal.ITIMER_REAL, seconds)


class StepTimes:
    """Measures the times between marks: with CUDA events if the program uses a GPU, else with the host's clock."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._ns: list[int] = []
        self._gpu: bool | None = None

    def mark(self) -> None:
        """Ends a step, and begins the next. Does not wait for the GPU."""
        import torch

        if self._gpu is None:
            self._gpu = torch.cuda.is_initialized()
        if max(len(self._events), len(self._ns)) > TIMED_STEPS:
            return
        if self._gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._ns.append(time.perf_counter_ns())

    def us(self) -> list[float]:
        """Returns the times between the marks, in µs. Waits for the GPU."""
        if not self._gpu:
            return [(next_ - one) / 1e3 for one, next_ in zip(self._ns, self._ns[1:], strict=False)]
        self._events[-1].synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return [round(1e3 * one.elapsed_time(next_), 3) for one, next_ in pairs]
