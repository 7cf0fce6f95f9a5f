"""The GPU of a search in the user's process. It launches one trial and waits, or times several trials in a race.

All work is queued on the caller's stream, after the caller's own work, and has ended before the search returns.
`Device` is the protocol that a search needs; `CudaDevice` implements it for a GPU.

The clock times as the worker's clock does (`race.event_timer`). But it runs in the user's process. So it does not
collect garbage, does not return torch's cached memory, and does not capture in a mode that affects other threads.
Before each launch, the inputs that the kernel overwrites are restored, and its other outputs are poisoned. All launches
use the caller's own inputs, while the worker alternates between copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from tilewright.errors import NoGpu, RequestError, TilewrightError, in_one_line
from tilewright.hardware.boards import Board
from tilewright.race.event_timer import EventTimer, torch_flush
from tilewright.race.protocol import CandidateCrashed, Clock
from tilewright.race.rules import Policy
from tilewright.runtime.arrays import CallValue, Stream, handle_of
from tilewright.runtime.key import hardware_of
from tilewright.runtime.search.scratch import DeviceLost, NoRoom
from tilewright.runtime.search.trials import Trial


@dataclass(frozen=True)
class Shot:
    """A launch in a race. ``refresh`` restores the inputs that the kernel overwrites, and poisons its other outputs, so
    that the kernel cannot find its previous result there. Then it does what the caller does before a launch.
    """

    trial: Trial
    args: tuple[CallValue, ...]
    refresh: Callable[[], None]


class Device(Protocol):
    """The machine that a search runs on."""

    @property
    def arch(self) -> str:
        """The architecture, such as ``sm_90``."""

    @property
    def board(self) -> Board | None:
        """The GPU product with its rates; None for an unknown product."""

    def active(self) -> AbstractContextManager[None]:
        """Selects the caller's device and stream inside the ``with`` block. The search does all its work in this
        block."""

    def run(self, trial: Trial, args: tuple[CallValue, ...]) -> None:
        """Launches once and waits. Raises what the launch raises, or DeviceLost if nothing more can be launched."""

    def clock(self, shots: Sequence[Shot], policy: Policy) -> AbstractContextManager[tuple[Clock, Policy]]:
        """Returns a clock that times ``shots`` by index, and its policy, which is eager if a graph is not possible."""


class CudaDevice:
    """A GPU. ``stream``: the caller's stream, as an object of torch, cuda.core or CuPy, or as a CUDA handle."""

    def __init__(self, stream: Stream) -> None:
        import torch

        self.torch, cuda = torch, torch.cuda
        if not cuda.is_available():
            raise NoGpu("tuning launches kernels, and torch finds no CUDA device here")
        index = getattr(getattr(stream, "device", None), "index", None)
        self._index = cuda.current_device() if index is None else index
        self._stream = cuda.current_stream(self._index)
        if stream is not None and (handle := handle_of(stream)) != self._stream.cuda_stream:
            self._stream = cuda.ExternalStream(handle, device=self._index)

    @property
    def arch(self) -> str:
        major, minor = self.torch.cuda.get_device_capability(self._index)
        return f"sm_{major}{minor}"

    @property
    def board(self) -> Board | None:
        with suppress(TilewrightError):
            return hardware_of(self._index)
        return None

    @contextmanager
    def active(self) -> Iterator[None]:
        cuda = self.torch.cuda
        with cuda.device(self._index), cuda.stream(self._stream):
            if cuda.is_current_stream_capturing():
                raise RequestError("a CUDA graph is being captured on this stream: tune before the capture")
            try:
                yield
            finally:
                with suppress(Exception):  # the context is broken, and the error that broke it is being raised
                    self._stream.synchronize()

    def run(self, trial: Trial, args: tuple[CallValue, ...]) -> None:
        with self.watched(trial.label):
            trial.launch(args)
        self.wait(trial.label)

    def wait(self, label: str) -> None:
        """Waits for all work on the current stream."""
        done = self.torch.cuda.Event()  # an event inside a graph would count as done until the graph runs
        with self.watched(label):
            done.record()
            wait_for(done.query, label)

    @contextmanager
    def clock(self, shots: Sequence[Shot], policy: Policy) -> Iterator[tuple[Clock, Policy]]:
        try:
            clock = _CudaClock(self, shots, policy)
        except self.torch.OutOfMemoryError:
            raise NoRoom("there is no memory left for the flush of the L2") from None
        try:
            if policy.launch == "graph" and not clock.capture():
                policy = replace(policy, launch="eager")
            yield clock, policy
        finally:
            clock.close()

    @contextmanager
    def watched(self, label: str) -> Iterator[None]:
        """Raises DeviceLost if an error inside has broken the context, as an invalid address does."""
        try:
            yield
        except DeviceLost:
            raise
        except Exception as error:
            try:
                self.torch.cuda.synchronize()
            except Exception:
                raise DeviceLost(
                    f"configuration {label} broke the GPU's context ({in_one_line(error)}); this process cannot use "
                    "the GPU any more: leave the configuration out of the space and start again"
                ) from error
            raise


class _CudaClock:
    def __init__(self, device: CudaDevice, shots: Sequence[Shot], policy: Policy) -> None:
        def launch(index: int) -> None:
            shots[index].trial.launch(shots[index].args)

        self._device, self._shots, self._cuda = device, shots, device.torch.cuda
        flush = None if policy.l2 == "warm" else torch_flush(device.torch)
        events = partial(device.torch.cuda.Event, enable_timing=True)
        self._timer = EventTimer(events, flush, len(shots), launch, lambda index: shots[index].refresh())

    def capture(self) -> bool:
        """Makes one graph for each shot. Returns False if cuda-tile cannot (1.7 cannot capture lists of arrays)."""
        self._timer.make_events(external=True)
        side, ours = self._cuda.Stream(), self._cuda.current_stream()
        side.wait_stream(ours)
        with self._cuda.stream(side):
            captured = all(self._captured(index) for index in range(len(self._shots)))
        ours.wait_stream(side)
        if not captured:
            self.close()
            self._timer.make_events()
        return captured

    def round(self, order: Sequence[int]) -> Sequence[float]:
        """Returns the times in µs, in the order of ``order``. Queues the whole round, and then waits for its end."""
        for index in order:
            try:
                with self._device.watched(self._shots[index].trial.label):
                    self._timer.queue(index)
            except DeviceLost:
                raise
            except Exception as error:
                raise CandidateCrashed(index, in_one_line(error)) from error
        self._device.wait(" or ".join(self._shots[index].trial.label for index in order))
        return self._timer.microseconds(order)

    def close(self) -> None:
        with suppress(Exception):  # the context is broken, and the error that broke it is being raised
            self._cuda.current_stream().synchronize()
        with suppress(Exception):
            self._timer.close()

    def _captured(self, index: int) -> bool:
        graph = self._cuda.CUDAGraph()
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._timer.queue_eager(index)
            finally:
                graph.capture_end()
        except Exception:
            return False
        self._timer.graphs.append(graph)
        return True


def wait_for(done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Polls ``done`` until it is true, so that Ctrl-C works. Raises DeviceLost after ``seconds``."""
    started = time.monotonic()
    while not done():
        waited = time.monotonic() - started
        if waited > seconds:
            raise DeviceLost(
                f"configuration {what} has not ended within {seconds:g} s; a kernel that runs cannot be stopped from "
                "inside its process: end it, and leave the configuration out of the space"
            )
        time.sleep(0.0 if waited < 0.002 else 0.0002)
