"""The GPU's part of a search in the caller's process: one launch that is waited for, and the clock of the race.

Everything is queued on the caller's stream, after the caller's own work, and has ended before the search returns.
`Device` is what a search needs of a machine; `CudaDevice` is a GPU.

The clock works like that of the worker: before each timed launch the L2 is emptied, so the host is ahead of the device
and the time between the two events is the kernel's. But it runs in the caller's process. So it does not collect
garbage, return torch's cached memory or capture in a mode that other threads notice, and an in-place kernel gets its
input back before each launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from tilewright.errors import NoGpu, RequestError, in_one_line
from tilewright.race.protocol import CandidateCrashed, Clock
from tilewright.race.rules import Policy
from tilewright.runtime.arrays import CallValue, CudaEvent, Stream
from tilewright.runtime.search.scratch import DeviceLost, NoRoom
from tilewright.runtime.search.trials import Trial

FLUSH_L2_TIMES = 2
"""The flush writes this many times the size of the L2, as in the worker."""


@dataclass(frozen=True)
class Shot:
    """A launch that is raced. ``refresh`` restores the inputs that the kernel overwrites."""

    trial: Trial
    args: tuple[CallValue, ...]
    refresh: Callable[[], None]


class Device(Protocol):
    """What a search needs of the machine that it runs on."""

    @property
    def arch(self) -> str:
        """``sm_90``."""

    def active(self) -> AbstractContextManager[None]:
        """All work of the search is done inside: on the caller's device and stream."""

    def run(self, trial: Trial, args: tuple[CallValue, ...]) -> None:
        """Launches once and waits. Raises what the launch raises, and DeviceLost if nothing more can be launched."""

    def clock(self, shots: Sequence[Shot], policy: Policy) -> AbstractContextManager[tuple[Clock, Policy]]:
        """Times ``shots`` by their indices. Also returns the policy that is kept: a graph may be impossible."""


class CudaDevice:
    """``stream``: the caller's, as an object of torch, cuda.core or CuPy, or as a handle."""

    def __init__(self, stream: Stream) -> None:
        import torch

        self.torch, cuda = torch, torch.cuda
        if not cuda.is_available():
            raise NoGpu("tuning launches kernels, and torch finds no CUDA device here")
        index = getattr(getattr(stream, "device", None), "index", None)
        self._index = cuda.current_device() if index is None else index
        named = (getattr(stream, name) for name in ("cuda_stream", "handle", "ptr") if hasattr(stream, name))
        handle: Any = next(named, stream)
        self._stream = cuda.current_stream(self._index)
        if handle is not None and int(handle) != self._stream.cuda_stream:
            self._stream = cuda.ExternalStream(int(handle), device=self._index)

    @property
    def arch(self) -> str:
        major, minor = self.torch.cuda.get_device_capability(self._index)
        return f"sm_{major}{minor}"

    @contextmanager
    def active(self) -> Iterator[None]:
        cuda = self.torch.cuda
        with cuda.device(self._index), cuda.stream(self._stream):
            if cuda.is_current_stream_capturing():
                raise RequestError("a CUDA graph is being captured on this stream: tune before the capture")
            try:
                yield
            finally:
                with suppress(Exception):  # a broken context: what broke it is being raised
                    self._stream.synchronize()

    def run(self, trial: Trial, args: tuple[CallValue, ...]) -> None:
        with self.watched(trial.label):
            self.launch(trial, args)
        self.wait(trial.label)

    def launch(self, trial: Trial, args: tuple[CallValue, ...]) -> None:
        """On the current stream."""
        import cuda.tile as ct

        ct.launch(self.torch.cuda.current_stream().cuda_stream, trial.grid, trial.kernel, args)

    def wait(self, label: str) -> None:
        """For all that was queued on the current stream. (Events in a graph count as done until it runs.)"""
        done = self.torch.cuda.Event()
        with self.watched(label):
            done.record()
            wait_for(done.query, label)

    @contextmanager
    def clock(self, shots: Sequence[Shot], policy: Policy) -> Iterator[tuple[Clock, Policy]]:
        try:
            clock = _CudaClock(self, shots, policy)
        except self.torch.OutOfMemoryError:
            raise NoRoom("there is no memory left for what empties the L2") from None
        try:
            if policy.launch == "graph" and not clock.capture():
                policy = replace(policy, launch="eager")
            yield clock, policy
        finally:
            clock.close()

    @contextmanager
    def watched(self, label: str) -> Iterator[None]:
        """Raises DeviceLost for an error that has broken the context, as a bad address does."""
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


class _Graph(Protocol):
    def replay(self) -> None: ...
    def reset(self) -> None: ...


class _CudaClock:
    def __init__(self, device: CudaDevice, shots: Sequence[Shot], policy: Policy) -> None:
        self._device, self._shots, self._cuda = device, shots, device.torch.cuda
        size = FLUSH_L2_TIMES * self._cuda.get_device_properties(self._cuda.current_device()).L2_cache_size
        uint8 = device.torch.uint8
        self._flush = None if policy.l2 == "warm" else device.torch.empty(size, dtype=uint8, device="cuda")
        self._events = self._pairs()
        self._graphs: list[_Graph] = []

    def capture(self) -> bool:
        """Makes one graph for each shot; False if cuda-tile cannot (1.7 cannot capture lists of arrays)."""
        self._events = self._pairs(external=True)
        side, ours = self._cuda.Stream(), self._cuda.current_stream()
        side.wait_stream(ours)
        with self._cuda.stream(side):
            captured = all(self._captured(index) for index in range(len(self._shots)))
        ours.wait_stream(side)
        if not captured:
            self.close()
            self._events = self._pairs()
        return captured

    def round(self, order: Sequence[int]) -> Sequence[float]:
        """Times in µs, in the order given. The whole round is queued before it is waited for."""
        for index in order:
            try:
                with self._device.watched(self._shots[index].trial.label):
                    if self._graphs:
                        self._graphs[index].replay()
                    else:
                        self._timed(index)
            except DeviceLost:
                raise
            except Exception as error:
                raise CandidateCrashed(index, in_one_line(error)) from error
        self._device.wait(" or ".join(self._shots[index].trial.label for index in order))
        return [self._events[index][0].elapsed_time(self._events[index][1]) * 1e3 for index in order]

    def close(self) -> None:
        """Graphs first, then the events that they record: the other order crashes in the driver (torch 2.11)."""
        with suppress(Exception):  # a broken context: what broke it is being raised
            self._cuda.current_stream().synchronize()
            for graph in self._graphs:
                graph.reset()
        self._graphs.clear()
        self._events.clear()

    def _pairs(self, **kind: bool) -> list[tuple[CudaEvent, CudaEvent]]:
        event = partial(self._cuda.Event, enable_timing=True, **kind)
        return [(event(), event()) for _ in self._shots]

    def _captured(self, index: int) -> bool:
        graph = self._cuda.CUDAGraph()
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._timed(index)
            finally:
                graph.capture_end()
        except Exception:
            return False
        self._graphs.append(graph)
        return True

    def _timed(self, index: int) -> None:
        shot, (before, after) = self._shots[index], self._events[index]
        shot.refresh()
        if self._flush is None:
            self._device.launch(shot.trial, shot.args)
            shot.refresh()
        else:
            self._flush.zero_()
        before.record()
        self._device.launch(shot.trial, shot.args)
        after.record()


def wait_for(done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Polls, so that Ctrl-C works. A launch that has not ended after ``seconds`` is named. Raises DeviceLost."""
    started = time.monotonic()
    while not done():
        waited = time.monotonic() - started
        if waited > seconds:
            raise DeviceLost(
                f"configuration {what} has not ended within {seconds:g} s; a kernel that runs cannot be stopped from "
                "inside its process: end it, and leave the configuration out of the space"
            )
        time.sleep(0.0 if waited < 0.002 else 0.0002)
