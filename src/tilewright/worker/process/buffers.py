"""The tensors of a task on a device.

Every tensor has guard bytes before and after it. Outputs are filled with poison bytes before each run. A
`backends.Backend` provides memory, random numbers and checksums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.records import Json
from tilewright.task.task import Task
from tilewright.task.tensors import ITEM_BYTES, Dims, is_whole
from tilewright.verify.arrays import Array
from tilewright.verify.images import POISONS
from tilewright.verify.tolerance import Slice, axes_of
from tilewright.worker.process.backends import Backend, Bytes, Tensor

GUARD_BYTES = 1 << 16  # on each side; a multiple of 256, which keeps the alignment of the allocation
GUARD = 0xA5
SWAPPED_BYTES = 1 << 27
"""The most bytes of an input that alternate while candidates are timed. An H200 copies them in 62 µs (at 4.3 TB/s)."""


@dataclass(frozen=True)
class Guarded:
    """One tensor and the guard bytes around it."""

    backend: Backend
    raw: Bytes
    tensor: Tensor

    @property
    def middle(self) -> Bytes:
        return self.raw[GUARD_BYTES : self.raw.numel() - GUARD_BYTES]

    @property
    def ends(self) -> tuple[Bytes, Bytes]:
        return self.raw[:GUARD_BYTES], self.raw[self.raw.numel() - GUARD_BYTES :]

    def intact(self) -> bool:
        return all(self.backend.is_filled(end, GUARD) for end in self.ends)

    def mend(self) -> None:
        for end in self.ends:
            end.fill_(GUARD)


def guarded(shape: tuple[int, ...], dtype: str, backend: Backend) -> Guarded:
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    raw = backend.full(nbytes + 2 * GUARD_BYTES, GUARD)
    return Guarded(backend, raw, backend.tensor(raw[GUARD_BYTES : GUARD_BYTES + nbytes], shape, dtype))


class Buffers:
    """All tensors of one task on one workload."""

    def __init__(self, task: Task, dims: Dims, backend: Backend) -> None:
        self.task, self.dims, self.backend = task, dims, backend
        arrays = task.arrays(dims).values()
        self.all = {array.name: guarded(array.shape, array.dtype, backend) for array in arrays}

    def tensors(self, *, in_place: bool = False) -> dict[str, Tensor]:
        """Returns the tensors by name. ``in_place``: an output with ``in_place_of`` is the tensor of that input."""
        tensors = {name: buffer.tensor for name, buffer in self.all.items()}
        if in_place:
            for name, output in self.task.outputs.items():
                tensors[name] = tensors[output.in_place_of or name]
        return tensors

    def draw(self, seed: int) -> None:
        """Draws new inputs. Equal seeds give equal values."""
        inputs = [(self.all[name].tensor, self.task.distribution(name, self.dims)) for name in self.task.inputs]
        self.backend.draw(inputs, seed)

    def poison(self, byte: int) -> None:
        """Fills the outputs with ``byte`` as `spoil` does, and repairs guards that a candidate damaged."""
        for buffer in self.all.values():
            buffer.mend()
        self.spoil(byte)

    def spoil(self, byte: int) -> None:
        """Fills the outputs with ``byte``. An output that updates an input gets the values of that input instead."""
        for name, output in self.task.outputs.items():
            if output.updates:
                self.all[name].middle.copy_(self.all[output.updates].middle)
            else:
                self.all[name].middle.fill_(byte)

    def checksums(self) -> dict[str, int]:
        return {name: self.backend.checksum(self.all[name].middle) for name in self.task.inputs}

    def slice_of(self, name: str, fetched: Array, part: Slice) -> Array:
        """Returns a slice of a tensor, for the operations in the backend's `arrays`: in int64 for an integer dtype.

        fetched: all elements of the tensor, from `Backend.fetched`.
        """
        spec = self.task.tensors[name]
        return self.backend.cut(fetched, axes_of(spec.shape, part), is_whole(spec.dtype))

    def input_slices(self, part: Slice) -> dict[str, Array]:
        """Copies a slice of each input to the host, in float64, or in int64 for an integer dtype."""
        fetched = {name: self.backend.fetched(self.all[name].tensor) for name in self.task.inputs}
        return {name: self.backend.arrays.host(self.slice_of(name, array, part)) for name, array in fetched.items()}


class InputSets:
    """Two sets of inputs that alternate at the same addresses while candidates are timed.

    If an input is larger than `SWAPPED_BYTES`, only its first bytes alternate. Arrays of offsets do not alternate,
    because the work may depend on the offsets, and a mixture of two arrays would not be valid.

    seeds: the seeds of the two sets. The second set is used first.
    """

    def __init__(self, buffers: Buffers, seeds: tuple[int, int]) -> None:
        self.buffers, self.current = buffers, 1
        self._sets: list[dict[str, Bytes]] = []
        for seed in seeds:
            buffers.draw(seed)
            self._sets.append({name: part.clone() for name, part in self._parts()})
        self.spoil()

    def swap(self) -> None:
        """Exchanges the two sets."""
        self.current = 1 - self.current
        for name, part in self._parts():
            part.copy_(self._sets[self.current][name])

    def spoil(self) -> None:
        """Poisons the outputs, so that a kernel cannot find its earlier results there."""
        self.buffers.spoil(POISONS[0])

    def record(self) -> dict[str, Json]:
        """Describes the work before each timed launch, for the record of a race."""
        task, parts = self.buffers.task, dict(self._parts())
        shares = {name: parts[name].numel() / max(1, self.buffers.all[name].middle.numel()) for name in task.inputs}
        return {"outputs": "poisoned before each launch", "alternating_share_of_inputs": shares}

    def _parts(self) -> Iterator[tuple[str, Bytes]]:
        """Yields each input's name, and the part of its bytes that differs between the two sets."""
        for name in self.buffers.task.inputs:
            whole = self.buffers.all[name].middle
            offsets = self.buffers.task.distribution(name, self.buffers.dims).steps is not None
            yield name, whole[: 0 if offsets else SWAPPED_BYTES]


@dataclass(frozen=True)
class DeviceMemory:
    """The buffers of one run, as a `judge.RunMemory`. ``replaced``: inputs that the kernel may write."""

    buffers: Buffers
    before: Mapping[str, int]  # `Buffers.checksums` before the run
    replaced: Collection[str | None] = ()

    def damaged(self) -> str | None:
        outside = [name for name, buffer in self.buffers.all.items() if not buffer.intact()]
        return f"the buffer of {', '.join(outside)}" if outside else None

    def changed(self) -> str | None:
        after = self.buffers.checksums()
        names = [name for name in after if name not in self.replaced and after[name] != self.before[name]]
        return ", ".join(names) or None
