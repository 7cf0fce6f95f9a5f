"""Times launches on a GPU with CUDA events, for the worker's clock and for the clock in the user's program.

torch is an argument, because only the worker and the user's program import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

FLUSH_L2_TIMES = 2  # the flush writes this many times the size of the L2


class EventTimer:
    """Queues launches on torch's current stream, each between two CUDA events.

    Before each timed launch the L2 is flushed (``l2="cold"``), or the kernel runs once untimed (``l2="warm"``).
    launch: queues the launch with the given index. refresh: restores that launch's inputs and outputs, untimed.
    """

    def __init__(
        self, torch: Any, count: int, l2: str, launch: Callable[[int], None], refresh: Callable[[int], None]
    ) -> None:
        self._event, self._count, self._launch, self._refresh = torch.cuda.Event, count, launch, refresh
        size = FLUSH_L2_TIMES * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._flush = None if l2 == "warm" else torch.empty(size, dtype=torch.uint8, device="cuda")
        self.graphs: list[Any] = []  # one CUDA graph of `queue_eager` for each launch; empty if eager
        self.make_events()

    def make_events(self, **kind: bool) -> None:
        """Replaces the events. Graphs need events with ``external=True``."""
        self._events = [[self._event(enable_timing=True, **kind) for _ in range(2)] for _ in range(self._count)]

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
            self._flush.zero_()
        before.record()
        self._launch(index)
        after.record()

    def microseconds(self, order: Sequence[int]) -> list[float]:
        """Returns the latest time of each launch in ``order``, in µs. The launches must have ended."""
        return [self._events[index][0].elapsed_time(self._events[index][1]) * 1e3 for index in order]

    def close(self) -> None:
        """Frees the graphs before their events; the other order crashes in the driver (torch 2.11)."""
        try:
            for graph in self.graphs:
                graph.reset()
        finally:
            self.graphs.clear()
            self._events.clear()
            self._flush = None  # the next timer may take this memory
