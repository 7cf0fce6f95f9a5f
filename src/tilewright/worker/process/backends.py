"""Defines the GPU operations of checks and races: memory, arithmetic on its contents, streams, events and graphs.

    torch_backend.TorchBackend      torch's memory; draws, checksums and comparisons on the device
    host_backend.HostBackend        the driver's memory; draws, checksums and comparisons on the host, with NumPy

`choosing` chooses between them. The worker imports torch only for a task that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tilewright.race.event_timer import LaunchGraph
from tilewright.task.tensors import Distribution
from tilewright.verify.arrays import Array, Arrays

Tensor = Any  # of torch, or `host_backend.DeviceArray`
Bytes = Any  # a flat torch tensor of uint8, or `cuda.DeviceBytes`
Runner = Callable[[int | None], None]  # launches once on a stream, given by its handle, or None on a CPU


class Backend(Protocol):
    """The operations of a check or a race on a GPU. Work is queued on the current stream."""

    @property
    def arrays(self) -> Arrays:
        """The operations with which the judge compares arrays that `fetched` returned."""

    @property
    def out_of_memory(self) -> type[Exception]:
        """The exception that `full` raises if there is too little memory."""

    # Memory

    def full(self, nbytes: int, byte: int) -> Bytes:
        """Allocates memory and fills it with ``byte``.

        The result has slices and the methods ``data_ptr``, ``numel``, ``fill_``, ``copy_`` and ``clone`` of a torch
        tensor of bytes.
        """

    def tensor(self, memory: Bytes, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Returns a row-major tensor in ``memory``."""

    def torch_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """Returns torch's tensors in the same memory, for a launch function."""

    def free(self) -> int:
        """Returns the number of bytes that can be allocated now."""

    def total(self) -> int:
        """Returns the size of the memory in bytes."""

    def release(self) -> None:
        """Returns unused memory, which is kept for later allocations, to the driver."""

    # Arithmetic on the contents of memory

    def draw(self, tensors: Sequence[tuple[Tensor, Distribution]], seed: int) -> None:
        """Fills tensors with values. Equal seeds give equal values."""

    def is_filled(self, memory: Bytes, byte: int) -> bool:
        """Returns whether all bytes of ``memory`` equal ``byte``."""

    def checksum(self, memory: Bytes) -> int:
        """Returns a checksum of the bytes and their order."""

    def fetched(self, tensor: Tensor) -> Array:
        """Returns the elements as an array for the operations in `arrays`, on the host or the device."""

    def kept(self, array: Array) -> Array:
        """Returns a fetched array that no later run changes, which may be a copy."""

    def cut(self, array: Array, axes: Mapping[int, Sequence[int]], whole: bool) -> Array:
        """Returns a slice of fetched elements, for the operations in `arrays`: in int64 if ``whole``.

        axes: the indices of the slice along each axis.
        """

    # Work

    def run(self, runner: Runner) -> None:
        """Runs a launch after all other work, and waits for its end. Raises the error of any launch so far."""

    def stream(self) -> Any:
        """Returns a new stream."""

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """Makes ``stream`` the current stream inside the ``with`` block."""

    def current(self) -> int | None:
        """Returns the handle of the current stream."""

    def synchronize(self) -> None:
        """Waits for all work."""

    def wait(self, stream: Any) -> None:
        """Waits for the work of ``stream``."""

    def event(self, external: bool = False) -> Any:
        """Returns an event with the methods of torch's timing events. ``external``: whether a graph records it."""

    def l2_flush(self) -> Callable[[], object]:
        """Returns a function that evicts all data from the L2."""

    def captured(self, stream: Any, work: Callable[[], object]) -> LaunchGraph:
        """Returns a graph of the work that ``work`` queues. It has the methods of torch's graphs."""
