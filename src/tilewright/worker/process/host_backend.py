"""Checks and races without torch: the driver's memory, and NumPy on the host. See `backends.Backend`."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import prod
from typing import Any, TypeVar

import numpy as np

from tilewright.hardware.gpu import detect
from tilewright.launching.cuda import (
    CapturedGraph,
    DeviceBytes,
    DriverContext,
    Event,
    OutOfMemory,
    Stream,
    free_and_total,
)
from tilewright.race.event_timer import FLUSH_L2_TIMES
from tilewright.task.tensors import Distribution
from tilewright.verify.arrays import HOST, Array
from tilewright.verify.images import memory_of_machine, storage
from tilewright.verify.tolerance import draw
from tilewright.worker.process.backends import Runner

DRAWN_SHARE = 16
"""Inputs are kept on the host up to this fraction of its memory. Each check uploads them again."""
PIECE = 1 << 20  # elements that are drawn by one generator, and four times as many bytes in one checksum

THREADS = 8
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class DeviceArray:
    """A row-major array on the device."""

    memory: DeviceBytes
    shape: tuple[int, ...]
    dtype: str

    def data_ptr(self) -> int:
        return self.memory.data_ptr()


class HostBackend:
    """Keeps the drawn inputs on the host, because each check uploads them again."""

    arrays = HOST
    out_of_memory = OutOfMemory

    def __init__(self) -> None:
        self._context = DriverContext()
        self._drawn = Drawn(memory_of_machine() // DRAWN_SHARE)

    def full(self, nbytes: int, byte: int) -> DeviceBytes:
        memory = DeviceBytes.allocated(self._context, nbytes)
        memory.fill_(byte)
        return memory

    def tensor(self, memory: DeviceBytes, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        return DeviceArray(memory, shape, dtype)

    def torch_tensors(self, tensors: Mapping[str, DeviceArray]) -> Mapping[str, Any]:
        from tilewright.worker.process.torch_backend import view_of

        return {name: view_of(array.memory, array.shape, array.dtype) for name, array in tensors.items()}

    def free(self) -> int:
        return free_and_total()[0]

    def total(self) -> int:
        return free_and_total()[1]

    def release(self) -> None:
        """Does nothing, because memory returns to the driver as soon as it is unused."""

    def draw(self, tensors: Sequence[tuple[DeviceArray, Distribution]], seed: int) -> None:
        for place, (array, how) in enumerate(tensors):
            array.memory.upload(self._drawn.get(how, array.shape, array.dtype, (seed, place)))

    def is_filled(self, memory: DeviceBytes, byte: int) -> bool:
        return bool((memory.downloaded() == byte).all())

    def checksum(self, memory: DeviceBytes) -> int:
        data = memory.downloaded()
        parts = in_threads(lambda at: blake2b(data[at : at + 4 * PIECE].data).digest(), range(0, data.size, 4 * PIECE))
        return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little")

    def fetched(self, tensor: DeviceArray) -> Array:
        return tensor.memory.downloaded().view(storage(tensor.dtype)).reshape(tensor.shape)

    def kept(self, array: Array) -> Array:
        return array

    def cut(self, array: Array, axes: Mapping[int, Sequence[int]], whole: bool) -> Array:
        for axis, indices in axes.items():
            array = array.take(indices, axis)
        return array.astype(np.int64) if whole else array

    def run(self, runner: Runner) -> None:
        self.synchronize()
        runner(self.current())
        self.synchronize()

    def stream(self) -> Stream:
        return Stream()

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        return self._context.on(stream)

    def current(self) -> int:
        return self._context.current

    def synchronize(self) -> None:
        self._context.synchronize()

    def wait(self, stream: Stream) -> None:
        with self._context.on(stream):
            self._context.wait()

    def event(self, external: bool = False) -> Event:
        return Event(self._context, external)

    def l2_flush(self) -> Callable[[], object]:
        gpu = detect()
        assert gpu is not None, "there is a GPU where something is timed"
        return partial(self.full(FLUSH_L2_TIMES * gpu.l2_bytes, 0).fill_, 0)

    def captured(self, stream: Stream, work: Callable[[], object]) -> CapturedGraph:
        return self._context.captured(stream, work)


class Drawn:
    """The bytes of drawn inputs.

    limit: the most bytes to keep. Beyond this limit, the least recently used inputs are dropped, and drawn again when
        needed.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[tuple[object, ...], Array] = OrderedDict()

    def get(self, how: Distribution, shape: tuple[int, ...], dtype: str, key: tuple[int, ...]) -> Array:
        """Returns the bytes of an input. Equal arguments give equal bytes. ``key``: the seed of its generators."""
        which = (how, shape, dtype, key)
        if which not in self._kept:
            self._kept[which] = drawn(how, shape, dtype, key).reshape(-1).view(np.uint8)
            self._bytes += self._kept[which].size
        self._kept.move_to_end(which)
        data = self._kept[which]
        while self._bytes > self._limit:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= gone.size
        return data


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Returns ``function(item)`` for each item, in order. Runs the calls in threads."""
    threads = min(len(items), THREADS, os.cpu_count() or 1)
    if threads <= 1:
        return [*map(function, items)]
    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(function, items)]


def drawn(how: Distribution, shape: tuple[int, ...], dtype: str, key: tuple[int, ...]) -> Array:
    """Draws an array. ``key``: the seed of its generators."""
    if how.steps is not None or how.like:
        return np.ascontiguousarray(draw(how, shape, np.random.default_rng(key)).astype(storage(dtype)))
    made = np.empty(prod(shape), storage(dtype))

    def fill(start: int) -> None:
        part = made[start : start + PIECE]
        part[...] = _values(how, part.size, np.random.default_rng((*key, start)))

    in_threads(fill, range(0, made.size, PIECE))
    return made.reshape(shape)


def _values(how: Distribution, size: int, rng: np.random.Generator) -> Array:
    if how.kind == "normal":
        return np.float32(how.b) * rng.standard_normal(size, np.float32) + np.float32(how.a)
    if how.kind == "uniform":
        return np.float32(how.b - how.a) * rng.random(size, np.float32) + np.float32(how.a)
    return rng.integers(int(how.a), int(how.b), size)
