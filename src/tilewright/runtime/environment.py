"""`Environment`: the functions for launches, searches, the store and the GPU that a tuned kernel calls. Tests replace
them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.runtime.arrays import CallValue, Stream
from tilewright.runtime.key import board_of, hardware_of
from tilewright.runtime.store import warn_once
from tilewright.runtime.store.search_locks import search_lock
from tilewright.runtime.store.warn_once import TuningWarning
from tilewright.runtime.store.winners import Winners

if TYPE_CHECKING:
    from tilewright.hardware.architectures import Board
    from tilewright.runtime.search.searching import SearchResult
    from tilewright.runtime.search.trials import FailedTrial, Trial


LEAVING = threading.Event()
"""This event is set when the program ends. A search in the background then stops at its next step."""


class Left(Exception):
    """Raised in a search to stop it, because the program is ending."""


def search(trials: Sequence[Trial | FailedTrial], **options: Any) -> SearchResult:
    """Calls `searching.search`. The import is inside the function, because most programs never search."""
    from tilewright.runtime.search import searching

    def stop_when_leaving(stage: str, done: int, total: int | None, note: str = "") -> None:
        if LEAVING.is_set():
            raise Left

    return searching.search(trials, on_progress=stop_when_leaving, **options)


def capturing(stream: Stream) -> bool:
    """Returns whether launches on ``stream``, or on torch's current stream, are being captured into a CUDA graph."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    if torch.cuda.is_current_stream_capturing():
        return True
    with on_stream(stream):
        return bool(torch.cuda.is_current_stream_capturing())


def on_stream(stream: Stream) -> AbstractContextManager[object]:
    """Makes ``stream`` torch's current stream inside the ``with`` block."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return nullcontext()
    if isinstance(stream, torch.cuda.Stream):
        return torch.cuda.stream(stream)  # type: ignore[no-any-return]
    given: Any = stream
    handle = int(getattr(given, "cuda_stream", given or 0))
    return torch.cuda.stream(torch.cuda.ExternalStream(handle))  # type: ignore[no-any-return]


def device_of(value: CallValue) -> int | None:
    """Returns the index of the GPU that holds an array or the first array of a list; None for any other value."""
    if isinstance(value, (list, tuple)):
        return next((device for device in map(device_of, value) if device is not None), None)
    if hasattr(value, "get_device"):
        index = int(value.get_device())
        return index if index >= 0 else None
    return 0 if hasattr(value, "__cuda_array_interface__") else None


def devices() -> int:
    """Returns how many GPUs torch sees."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.cuda.device_count())


@dataclass(frozen=True)
class Environment:
    """The functions that a tuned kernel calls, with their usual values. ``launch``: None means `ct.launch`."""

    launch: Callable[..., None] | None = None
    search: Callable[..., SearchResult] = search
    winners: Winners = field(default_factory=Winners)
    search_lock: Callable[..., AbstractContextManager[bool]] = search_lock
    board: Callable[[int], str] = board_of
    hardware: Callable[[int], Board] = hardware_of
    capturing: Callable[[Stream], bool] = capturing
    devices: Callable[[], int] = devices

    def launching(self) -> Callable[..., None]:
        from cuda.tile import launch

        return self.launch or launch


def warn(text: str) -> None:
    """Issues a `TuningWarning`. Never raises, even under ``-W error``, because the user's call must go on."""
    warn_once.warn(text, TuningWarning)
