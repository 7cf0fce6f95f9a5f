"""The clock of a race on a GPU: one launch per candidate and round, timed by CUDA events (`race.event_timer`).

Each timed launch has these steps: poison the outputs, flush the L2, record an event, run the kernel, record another
event. In a graph launch (the default), a CUDA graph contains the steps. An eager launch runs the steps without a graph,
so host time between the events counts, too. A whole round is queued before the clock waits. Every round has other
inputs than the round before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.hardware.gpu import Monitor
from tilewright.race.event_timer import EventTimer, LaunchGraph
from tilewright.race.protocol import Disturbed
from tilewright.race.rules import Policy
from tilewright.worker.process.backends import Runner
from tilewright.worker.process.buffers import InputSets


class GpuClock:
    """Times runners. One runner may be a second copy of another runner's kernel, for the A/A check.

    sets: the inputs of all runners.
    announce: called with each index before its first launch, to identify a kernel that hangs.
    """

    def __init__(
        self, runners: Sequence[Runner], policy: Policy, monitor: Monitor, sets: InputSets,
        announce: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._runners, self._monitor, self._sets, self._announce = list(runners), monitor, sets, announce
        self._backend = backend = sets.buffers.backend
        flush = None if policy.l2 == "warm" else backend.l2_flush()
        self._timer = EventTimer(backend.event, flush, len(runners), self._run, lambda index: sets.spoil())
        self._stream = backend.stream()
        backend.synchronize()  # the inputs are drawn on another stream
        if policy.launch == "graph":
            self._timer.make_events(external=True)
            self._timer.graphs = [self._captured(index) for index in range(len(runners))]

    def __enter__(self) -> GpuClock:
        return self

    def __exit__(self, *_: object) -> None:
        self._backend.synchronize()
        self._timer.close()
        self._runners.clear()  # after the graphs, because a runner may own the code that the graphs launch

    def round(self, order: Sequence[int]) -> Sequence[float]:
        """Returns the times in µs, in the order of ``order``. Raises `Disturbed` if the GPU was throttled meanwhile."""
        with self._backend.on(self._stream):
            self._sets.swap()
            for index in order:
                self._timer.queue(index)
        self._backend.wait(self._stream)
        if reason := self._monitor.disturbance():
            raise Disturbed(reason)
        return self._timer.microseconds(order)

    def _captured(self, index: int) -> LaunchGraph:
        self._announce(index)
        with self._backend.on(self._stream):
            self._run(index)  # loads the module outside the capture
        self._backend.wait(self._stream)
        return self._backend.captured(self._stream, lambda: self._timer.queue_eager(index))

    def _run(self, index: int) -> None:
        self._runners[index](self._backend.current())
