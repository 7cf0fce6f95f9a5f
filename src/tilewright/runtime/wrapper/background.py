"""Tuning beside the program: one thread that searches on copies of the arrays, on a stream of its own.

The program goes on with its arrays while the search runs, so the search gets copies, made on the caller's stream
at the call: it verifies on what the call saw. Arrays that overlap overlap in the copies too, at the same
distances and alignments. The searches run one after another; the program's own kernels run between them
and make the times noisier, which costs a search time and not its answer: pairs of one round share the noise.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tilewright.errors import in_one_line
from tilewright.runtime.environment import LEAVING, Left, on_stream, warn

LEAVE_SECONDS = 10.0
"""How long the program's end waits for that."""
BASE = 512
"""torch's allocations begin at multiples of this: alignments within it are kept."""


class _Worker:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._left = 0
        self._idle = threading.Condition()

    def add(self, what: str, job: Callable[[], None]) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tilewright tuning", daemon=True)
                self._thread.start()
        with self._idle:
            self._left += 1
        self._jobs.put((what, job))

    def wait(self, seconds: float | None) -> bool:
        with self._idle:
            return self._idle.wait_for(lambda: not self._left, seconds)

    def leave(self) -> None:
        """At the end of the program: no further search starts, and the one that runs stops at its next step."""
        LEAVING.set()
        with suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(LEAVE_SECONDS)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            what, run = job
            try:
                run()
            except Left:
                pass
            except Exception as error:  # the program goes on with the shipped configuration
                warn(f"{what} in the background failed ({in_one_line(error)}); the shipped configuration stays")
            with self._idle:
                self._left -= 1
                self._idle.notify_all()


_worker = _Worker()


def _fresh() -> None:
    """In a forked child no thread runs: what was being tuned stays with the parent."""
    global _worker
    _worker = _Worker()


def in_background(what: str, job: Callable[[], None]) -> None:
    """Runs ``job`` after those before it. ``what``: how a warning calls it."""
    if _worker._thread is None:
        atexit.register(_worker.leave)
        os.register_at_fork(after_in_child=_fresh)
    _worker.add(what, job)


def wait_for_background(seconds: float | None = None) -> bool:
    """Until nothing is left to tune; whether that is so. For a program that wants to end tuned, and for tests."""
    return _worker.wait(seconds)


def copies(stream: Any, values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """A stream of its own, which waits for the copies; and ``values`` with each array copied.

    Raises torch's error where memory does not suffice.
    """
    torch = sys.modules.get("torch")
    tensors = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    tensors = [one for one in tensors if torch is not None and isinstance(one, torch.Tensor)]
    with on_stream(stream):
        copied = _copied(tensors)
        own = _stream_after_current(tensors)

    def copy(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(copy, value))
        return copied.get(id(value), value)

    return (stream if own is None else own), [copy(value) for value in values]


def _stream_after_current(tensors: Sequence[Any]) -> Any:
    cuda = next((one.device for one in tensors if one.is_cuda), None)
    if cuda is None:
        return None
    torch = sys.modules["torch"]
    own = torch.cuda.Stream(cuda)
    own.wait_stream(torch.cuda.current_stream(cuda))
    return own


def _bytes(tensor: Any, size: int) -> Any:
    """The memory of a tensor from its first element on: also where elements share an address, or have gaps."""
    torch = sys.modules["torch"]
    storage = tensor.untyped_storage()
    start = tensor.data_ptr() - storage.data_ptr()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, start, (size,), (1,))


def _copied(tensors: Sequence[Any]) -> dict[int, Any]:
    """By the id of each tensor. What overlaps is copied as one piece of memory."""
    from tilewright.runtime.search.scratch import extent

    torch = sys.modules["torch"] if tensors else None
    found: dict[int, Any] = {}
    pieces: list[list[Any]] = []
    end = None
    for tensor in sorted({id(one): one for one in tensors}.values(), key=lambda one: (str(one.device), extent(one))):
        low, high = extent(tensor)
        if end is None or end[0] != tensor.device or low >= end[1]:
            pieces.append([])
            end = (tensor.device, high)
        pieces[-1].append(tensor)
        end = (tensor.device, max(end[1], high))
    for piece in pieces:
        low = min(extent(one)[0] for one in piece)
        start, stop = low - low % BASE, max(extent(one)[1] for one in piece)
        memory = torch.empty(stop - start + BASE, dtype=torch.uint8, device=piece[0].device)  # type: ignore[union-attr]
        shift = -memory.data_ptr() % BASE
        for one in piece:
            place = extent(one)[0] - start + shift
            twin = torch.empty(0, dtype=one.dtype, device=one.device)  # type: ignore[union-attr]
            offset, rest = divmod(place, one.element_size())
            assert not rest, "an array whose address is no multiple of its element"
            found[id(one)] = twin.set_(memory.untyped_storage(), offset, tuple(one.shape), tuple(one.stride()))
            size = extent(one)[1] - extent(one)[0]
            memory.narrow(0, place, size).copy_(_bytes(one, size))
    return found
