"""The clock of a race on a GPU: one launch per candidate and round, timed by CUDA events.

Graph launch (the default): each candidate has one CUDA graph that empties the L2, records an event,
runs the kernel, records an event. Eager: the same four steps one by one, as a program without graphs
would launch; host time between the events counts. Warm L2: the kernel runs once untimed instead of
the flush. A whole round is queued and then waited for once. Source of the scheme: `protocol.Clock`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tilewright.hardware.gpu import Monitor
from tilewright.race.protocol import Disturbed
from tilewright.race.rules import Policy

FLUSH_L2_TIMES = 2
"""The flush writes this many times the L2, so that nothing of it survives."""

Runner = Callable[[int | None], None]
"""Launches once on a stream, given as its handle; None on a CPU."""


class GpuClock:
    """Times runners. ``runners`` may hold one kernel twice: that is the A/A check.

    ``announce`` is told each index before its first launch, so that a hang has a name.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        policy: Policy,
        monitor: Monitor,
        announce: Callable[[int], None] = lambda index: None,
    ) -> None:
        self.runners, self.policy, self.monitor = list(runners), policy, monitor
        self._announce = announce
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._flush = torch.empty(FLUSH_L2_TIMES * l2, dtype=torch.uint8, device="cuda")
        self._stream = torch.cuda.Stream()
        graph = policy.launch == "graph"
        self._events = [tuple(torch.cuda.Event(enable_timing=True, external=graph) for _ in "ab") for _ in runners]
        self._graphs = [self._captured(index) for index in range(len(runners))] if graph else []

    def __enter__(self) -> GpuClock:
        return self

    def __exit__(self, *_: object) -> None:
        """Graphs before the events they record: the other order crashes in the driver (torch 2.11)."""
        torch.cuda.synchronize()
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._events.clear()

    def round(self, order: Sequence[int]) -> Sequence[float]:
        """Times in µs, in the order given. Raises `Disturbed` when the GPU was throttled meanwhile."""
        with torch.cuda.stream(self._stream):
            for index in order:
                if self._graphs:
                    self._graphs[index].replay()
                else:
                    self._timed(index)
        self._stream.synchronize()
        if reason := self.monitor.disturbance():
            raise Disturbed(reason)
        return [self._events[index][0].elapsed_time(self._events[index][1]) * 1e3 for index in order]

    def _captured(self, index: int) -> torch.cuda.CUDAGraph:
        self._announce(index)
        with torch.cuda.stream(self._stream):
            self._run(index)  # loads the module outside the capture
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._timed(index)
        return graph

    def _timed(self, index: int) -> None:
        before, after = self._events[index]
        if self.policy.l2 == "cold":
            self._flush.zero_()
        else:
            self._run(index)
        before.record()
        self._run(index)
        after.record()

    def _run(self, index: int) -> None:
        self.runners[index](torch.cuda.current_stream().cuda_stream)
