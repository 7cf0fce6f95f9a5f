"""What a tuned kernel needs of its world: a launch, a search, a store, a GPU. Tests bring other worlds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tilewright.errors import NoGpu
from tilewright.runtime.key import board_of
from tilewright.runtime.store import warn_once
from tilewright.runtime.store.search_locks import search_lock
from tilewright.runtime.store.winners import Winners

SearchLock = Callable[..., AbstractContextManager[bool]]


class TuningWarning(UserWarning):
    """A kernel runs with another configuration than its author's caller may expect, and why."""


LEAVING = threading.Event()
"""Set when the program ends: a search beside it then stops at its next step."""


class Left(Exception):
    """The program ends while a search runs."""


def search(*arguments: Any, **options: Any) -> Any:
    """`searching.search`, imported when there is something to search."""
    from tilewright.runtime.search import searching

    return searching.search(*arguments, on_progress=_stop_when_leaving, **options)


def _stop_when_leaving(stage: str, done: int, total: int | None, note: str = "") -> None:
    if LEAVING.is_set():
        raise Left


def capturing(stream: Any) -> bool:
    """Whether launches on the stream, or on the current one, are being recorded into a CUDA graph."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    if torch.cuda.is_current_stream_capturing():
        return True
    with on_stream(stream):
        return bool(torch.cuda.is_current_stream_capturing())


def on_stream(stream: Any) -> AbstractContextManager[Any]:
    """torch's own work goes to ``stream``: a torch stream, or the number of one (0 is the default stream)."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return nullcontext()
    if isinstance(stream, torch.cuda.Stream):
        return torch.cuda.stream(stream)  # type: ignore[no-any-return]
    number = int(getattr(stream, "cuda_stream", stream if isinstance(stream, int) else int(stream)))
    return torch.cuda.stream(torch.cuda.ExternalStream(number))  # type: ignore[no-any-return]


@cache
def hardware_of(device: int) -> Any:
    """The `Board` of the GPU with this index: its SMs, bandwidth and rates. Raises `NoGpu`."""
    from tilewright.hardware.architectures import board_for_gpu

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise NoGpu(f"there is no GPU {device} that CUDA can use")
    one = torch.cuda.get_device_properties(device)
    return board_for_gpu(one.name, one.multi_processor_count, one.total_memory, arch=f"sm_{one.major}{one.minor}")


def device_of(value: Any) -> int | None:
    """The index of the GPU that holds an array, or the arrays of a list; None for what no GPU holds."""
    if isinstance(value, (list, tuple)):
        return next((one for one in map(device_of, value) if one is not None), None)
    if hasattr(value, "get_device"):
        index = int(value.get_device())
        return index if index >= 0 else None
    return 0 if hasattr(value, "__cuda_array_interface__") else None


def devices() -> int:
    """How many GPUs torch sees."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.cuda.device_count())


@dataclass(frozen=True)
class Environment:
    """The real ones by default; the functions of this module say what each does."""

    launch: Callable[..., None] | None = None
    search: Callable[..., Any] = search
    winners: Winners = field(default_factory=Winners)
    search_lock: SearchLock = search_lock
    board: Callable[[int], str] = board_of
    hardware: Callable[[int], Any] = hardware_of
    capturing: Callable[[Any], bool] = capturing
    devices: Callable[[], int] = devices

    def launching(self) -> Callable[..., None]:
        if self.launch is not None:
            return self.launch
        import cuda.tile

        launch: Callable[..., None] = cuda.tile.launch
        return launch


def warn(text: str) -> None:
    """A warning that is never an exception, not even under ``-W error``: the user's call goes on."""
    warn_once.warn(text, TuningWarning)
