"""Tuning in the background: one thread that searches on copies of the arrays, on its own stream.

The program changes its arrays while the search runs, so the search gets copies. The copies are made at the call, on the
caller's stream, so they have the data of the call. Copies of overlapping arrays overlap in the same way, and have the
same alignments. The program's own kernels make the times noisier, so a search takes longer. The result stays right,
because all configurations of a round share the noise.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from tilewright.errors import in_one_line
from tilewright.runtime.arrays import CallValue, LiveArray, Stream
from tilewright.runtime.environment import LEAVING, Left, on_stream, warn

BASE = 512
"""Bytes. torch allocates memory at multiples of this number. The addresses of a copy and of its array differ by a
multiple of it."""


class _Worker:
    def __init__(self) -> None:
        self._jobs: queue.Queue[tuple[str, Callable[[], None]] | None] = queue.Queue()
        self._starting = threading.Lock()
        self.thread: threading.Thread | None = None

    def add(self, what: str, job: Callable[[], None]) -> None:
        with self._starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name="tilewright tuning", daemon=True)
                self.thread.start()
        self._jobs.put((what, job))

    def leave(self) -> None:
        """Ends the thread when the program ends. No further search starts, and a running one stops at its next step."""
        LEAVING.set()
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        self._jobs.put(None)
        if self.thread is not None:
            self.thread.join(10.0)  # seconds

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            what, run = job
            try:
                run()
            except Left:
                pass
            except Exception as error:  # the program goes on with the shipped configuration
                warn(f"{what} in the background failed ({in_one_line(error)}); the shipped configuration stays")


_worker = _Worker()


def _replace_worker() -> None:
    """Makes a new worker in a forked child, because a child has no threads."""
    global _worker
    _worker = _Worker()


def in_background(what: str, job: Callable[[], None]) -> None:
    """Runs ``job`` in the background thread, after all earlier jobs. ``what``: names the job in a warning."""
    if _worker.thread is None:
        atexit.register(_worker.leave)
        os.register_at_fork(after_in_child=_replace_worker)
    _worker.add(what, job)


def copies(stream: Stream, values: Sequence[CallValue]) -> tuple[Stream, list[CallValue]]:
    """Returns a new stream that waits for the copies, and ``values`` with each torch tensor copied. Raises torch's
    error if there is too little memory."""
    torch = sys.modules.get("torch")
    flat = [item for value in values for item in (value if isinstance(value, (list, tuple)) else [value])]
    tensors: list[LiveArray] = [item for item in flat if torch is not None and isinstance(item, torch.Tensor)]
    own = stream
    with on_stream(stream):
        copied = _copied(tensors)
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if torch is not None and device is not None:
            own = torch.cuda.Stream(device)
            own.wait_stream(torch.cuda.current_stream(device))

    def copy(value: CallValue) -> CallValue:
        return type(value)(map(copy, value)) if isinstance(value, (list, tuple)) else copied.get(id(value), value)

    return own, [copy(value) for value in values]


def _copied(tensors: Sequence[LiveArray]) -> dict[int, LiveArray]:
    """Maps the id of each tensor to its copy. Tensors that overlap are copied as one piece of memory."""
    from tilewright.runtime.search.scratch import address_range, bytes_of

    distinct = {id(tensor): tensor for tensor in tensors}.values()
    pieces: list[list[LiveArray]] = []
    device, end = "", 0
    for tensor in sorted(distinct, key=lambda tensor: (str(tensor.device), address_range(tensor))):
        low, high = address_range(tensor)
        if not pieces or str(tensor.device) != device or low >= end:
            pieces.append([])
            device, end = str(tensor.device), high
        pieces[-1].append(tensor)
        end = max(end, high)
    copied: dict[int, LiveArray] = {}
    for piece in pieces:
        torch, start = sys.modules["torch"], address_range(piece[0])[0] // BASE * BASE
        size = max(address_range(tensor)[1] for tensor in piece) - start + BASE
        memory: LiveArray = torch.empty(size, dtype=torch.uint8, device=piece[0].device)
        shift = -memory.data_ptr() % BASE - start
        for tensor in piece:
            low, high = address_range(tensor)
            memory.narrow(0, low + shift, high - low).copy_(bytes_of(tensor, low, high))
            copy, offset = tensor.new_empty(0), (low + shift) // tensor.element_size()
            copied[id(tensor)] = copy.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())
    return copied
