"""Memory, streams, events and graphs of the CUDA driver, through cuda-bindings and without torch.

`DeviceBytes` and `Event` have methods of torch's names, so that the same code works on them and on torch's objects.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import MachineError

if TYPE_CHECKING:
    from cuda.bindings.driver import CUgraph, CUstream

HostBytes = npt.NDArray[np.uint8]

DEFAULT_STREAM = 0
NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream does not wait for the default stream."""
EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL: the event of a graph can be read outside the graph."""

FAILED = "the launch failed"


class OutOfMemory(RuntimeError):
    """The GPU has too little free memory."""


@lru_cache(maxsize=1)
def driver() -> ModuleType:
    """Returns the driver's functions."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise MachineError("cuda-bindings is not installed; fix: pip install cuda-bindings") from None
    functions: ModuleType = driver
    return functions


def checked(answer: tuple[Any, ...], failure: str = "the driver refuses a call") -> Any:
    """Returns the values of a driver call without its status. Raises RuntimeError with the name of the error."""
    status, *values = answer
    if int(status) != 0:
        kind = OutOfMemory if status.name == "CUDA_ERROR_OUT_OF_MEMORY" else RuntimeError
        raise kind(f"{failure}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values) or None


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether the driver, or torch, found too little free memory."""
    torch = _torch_in_use()
    return isinstance(error, OutOfMemory) or (torch is not None and isinstance(error, torch.cuda.OutOfMemoryError))


def release_torchs_cache() -> bool:
    """Gives memory that torch does not use back to the driver. Returns whether torch is in use."""
    torch = _torch_in_use()
    if torch is not None:
        torch.cuda.empty_cache()
    return torch is not None


def _torch_in_use() -> ModuleType | None:
    torch = sys.modules.get("torch")
    in_use = getattr(getattr(torch, "cuda", None), "is_initialized", lambda: False)  # a thread may be importing torch
    return torch if in_use() else None


def free_and_total() -> tuple[int, int]:
    """Returns the number of free bytes and the total number of bytes of the GPU's memory."""
    free, total = checked(driver().cuMemGetInfo())
    return int(free), int(total)


def allocated(nbytes: int, owner: object) -> int:
    """Allocates memory that is freed with ``owner``. Returns its address."""
    answer = driver().cuMemAlloc(max(1, nbytes))
    if answer[0] == driver().CUresult.CUDA_ERROR_OUT_OF_MEMORY and release_torchs_cache():
        answer = driver().cuMemAlloc(max(1, nbytes))
    memory = checked(answer, f"no memory for {nbytes} bytes on the GPU")
    weakref.finalize(owner, driver().cuMemFree, memory).atexit = False
    return int(memory)


def make_current(device: int) -> None:
    """Gives this thread the context of a GPU that torch uses, too, unless the thread has a context."""
    checked(driver().cuInit(0))
    if not int(checked(driver().cuCtxGetCurrent()) or 0):
        context = checked(driver().cuDevicePrimaryCtxRetain(checked(driver().cuDeviceGet(device))))
        checked(driver().cuCtxSetCurrent(context))


def current_device() -> int:
    """Returns the index of the GPU whose context this thread has."""
    return int(checked(driver().cuCtxGetDevice()))


class DriverContext:
    """The CUDA context, which torch uses, too. New work goes to the stream ``current``, a CUDA handle."""

    def __init__(self) -> None:
        checked(driver().cuInit(0))
        context = checked(driver().cuDevicePrimaryCtxRetain(checked(driver().cuDeviceGet(0))))
        checked(driver().cuCtxSetCurrent(context))
        self.current = DEFAULT_STREAM

    @property
    def stream(self) -> CUstream:
        return driver().CUstream(self.current)

    def synchronize(self) -> None:
        """Waits for all work of the context. Raises RuntimeError for the error of any launch."""
        checked(driver().cuCtxSynchronize(), FAILED)

    def wait(self) -> None:
        """Waits for the work of the current stream."""
        checked(driver().cuStreamSynchronize(self.stream), FAILED)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Makes ``stream`` the current stream inside the ``with`` block."""
        before, self.current = self.current, stream.handle
        try:
            yield
        finally:
            self.current = before

    def captured(self, stream: Stream, work: Callable[[], object]) -> CapturedGraph:
        """Returns a graph of the work that ``work`` queues on ``stream``."""
        relaxed = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED  # memory may be freed meanwhile
        with self.on(stream):
            checked(driver().cuStreamBeginCapture(self.stream, relaxed), "the launch cannot be captured")
            try:
                work()
            except BaseException:
                driver().cuStreamEndCapture(self.stream)
                raise
            graph = checked(driver().cuStreamEndCapture(self.stream), "the launch cannot be captured")
        return CapturedGraph(self, graph)


class Stream:
    def __init__(self) -> None:
        self.handle = int(checked(driver().cuStreamCreate(NON_BLOCKING)))
        weakref.finalize(self, driver().cuStreamDestroy, driver().CUstream(self.handle)).atexit = False


class Event:
    """A time on the device. ``external``: whether a graph records it."""

    def __init__(self, context: DriverContext, external: bool = False) -> None:
        self._context, self._flags = context, EXTERNAL if external else 0
        self._event = checked(driver().cuEventCreate(0))
        weakref.finalize(self, driver().cuEventDestroy, self._event).atexit = False

    def record(self) -> None:
        checked(driver().cuEventRecordWithFlags(self._event, self._context.stream, self._flags))

    def elapsed_time(self, end: Event) -> float:
        """Returns the milliseconds from this event to ``end``."""
        return float(checked(driver().cuEventElapsedTime(self._event, end._event)))


class CapturedGraph:
    """An executable CUDA graph. ``captured``: the graph from which it is made, and which is destroyed afterwards."""

    def __init__(self, context: DriverContext, captured: CUgraph) -> None:
        self._context = context
        try:
            self._graph = checked(driver().cuGraphInstantiate(captured, 0))
        finally:
            driver().cuGraphDestroy(captured)

    def replay(self) -> None:
        checked(driver().cuGraphLaunch(self._graph, self._context.stream))

    def reset(self) -> None:
        checked(driver().cuGraphExecDestroy(self._graph))


class DeviceBytes:
    """Bytes on the device. A slice shares the memory, which is freed with its last slice.

    All methods work on the current stream. Methods that take or return bytes of the host also wait for this stream.
    """

    def __init__(self, context: DriverContext, address: int, nbytes: int, owner: object) -> None:
        self._context, self._address, self._nbytes, self._owner = context, address, nbytes, owner

    @classmethod
    def allocated(cls, context: DriverContext, nbytes: int) -> DeviceBytes:
        owner = _Owner()
        return cls(context, allocated(nbytes, owner), nbytes, owner)

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return self._nbytes

    def __getitem__(self, part: slice) -> DeviceBytes:
        start, stop, _ = part.indices(self._nbytes)
        return DeviceBytes(self._context, self._address + start, max(0, stop - start), self._owner)

    def fill_(self, byte: int) -> None:
        if self._nbytes:
            checked(driver().cuMemsetD8Async(self._address, byte, self._nbytes, self._context.stream))

    def copy_(self, source: DeviceBytes) -> None:
        if self._nbytes:
            stream = self._context.stream
            checked(driver().cuMemcpyDtoDAsync(self._address, source._address, self._nbytes, stream))

    def clone(self) -> DeviceBytes:
        made = DeviceBytes.allocated(self._context, self._nbytes)
        made.copy_(self)
        return made

    def upload(self, data: HostBytes) -> None:
        """Copies bytes from the host."""
        assert data.size == self._nbytes and data.flags.c_contiguous
        if self._nbytes:
            checked(driver().cuMemcpyHtoDAsync(self._address, data.ctypes.data, self._nbytes, self._context.stream))
            self._context.wait()

    def downloaded(self) -> HostBytes:
        """Returns a copy on the host."""
        data = np.empty(self._nbytes, np.uint8)
        if self._nbytes:
            checked(driver().cuMemcpyDtoHAsync(data.ctypes.data, self._address, self._nbytes, self._context.stream))
            self._context.wait()
        return data

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": (self._nbytes,), "typestr": "|u1", "data": (self._address, False), "version": 3}


class _Owner:
    """The owner of an allocation. All `DeviceBytes` of the allocation refer to it. Its end frees the memory."""
