"""Times launches on a GPU with CUDA events, for the worker's clock and for the clock in the user's program.

Events and graphs are torch's or have the same methods (`launching.cuda`). They use the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

FLUSH_L2_TIMES = 2  # the flush writes this many times the size of the L2


class LaunchGraph(Protocol):
    """An executable CUDA graph, of torch or of `launching.cuda`."""

    def replay(self) -> None: ...
    def reset(self) -> None: ...


class EventTimer:
    """Queues launches on the current stream, each between two CUDA events.

    Before each timed launch the L2 is flushed. Without a ``flush``, the kernel runs once untimed, which warms the L2.
    events: makes an event. With ``external=True``, a graph can record the event.
    launch: queues the launch with the given index.
    refresh: restores the inputs and outputs of the launch with the given index, untimed.
    """

    def __init__(
        self, events: Callable[..., Any], flush: Callable[[], object] | None, count: int,
        launch: Callable[[int], None], refresh: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._event, self._count, self._launch, self._refresh = events, count, launch, refresh
        self._flush = flush
        self.graphs: list[LaunchGraph] = []  # one CUDA graph of `queue_eager` for each launch; empty if eager
        self.make_events()

    def make_events(self, **kind: bool) -> None:
        """Replaces the events. Graphs need events with ``external=True``."""
        self._events = [[self._event(**kind) for _ in range(2)] for _ in range(self._count)]

    def queue(self, index: int) -> None:
        if self.graphs:
            self.graphs[index].replay()
        else:
            self.queue_eager(index)

    def queue_eager(self, index: int) -> None:
        before, after = self._events[index]
        self._refresh(index)
        if self._flush is None:
            self._launch(index)
            self._refresh(index)
        else:
            self._flush()
        before.record()
        self._launch(index)
        after.record()

    def microseconds(self, order: Sequence[int]) -> list[float]:
        """Returns the time of the last run of each launch in ``order``, in µs. The launches must have ended."""
        return [self._events[index][0].elapsed_time(self._events[index][1]) * 1e3 for index in order]

    def close(self) -> None:
        """Frees the graphs, then their events. The opposite order crashes in the driver (torch 2.11)."""
        try:
            for graph in self.graphs:
                graph.reset()
        finally:
            self.graphs.clear()
            self._events.clear()
            self._flush = None  # the next timer may take this memory


def torch_flush(torch: ModuleType) -> Callable[[], object]:
    """Returns a function that flushes the L2 on torch's current stream. ``torch``: the imported module."""
    size = FLUSH_L2_TIMES * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flush: Callable[[], object] = torch.empty(size, dtype=torch.uint8, device="cuda").zero_
    return flush
