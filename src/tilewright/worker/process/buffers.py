"""The tensors of a task on a device.

Every tensor has guard bytes before and after it. Outputs are filled with poison bytes before each run. torch provides
memory, random numbers and comparisons on the device. Only modules of the worker process import torch at their top.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from tilewright.records import Json
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, Distribution, is_whole
from tilewright.verify.arrays import Array, Tensors
from tilewright.verify.images import POISONS
from tilewright.verify.tolerance import Slice, axes_of, draw

GUARD_BYTES = 1 << 16  # on each side; a multiple of 256, which keeps the alignment of torch's allocator
GUARD = 0xA5
SWAPPED_BYTES = 1 << 27
"""The most bytes of an input that alternate while candidates are timed. An H200 copies them in 62 µs (at 4.3 TB/s)."""
CHUNK = 1 << 24  # words of eight bytes that are summed at a time, to limit the memory for a checksum
TENSORS = Tensors(torch)


@dataclass(frozen=True)
class Guarded:
    """One tensor and the guard bytes around it."""

    raw: torch.Tensor
    tensor: torch.Tensor

    @property
    def middle(self) -> torch.Tensor:
        return self.raw[GUARD_BYTES : self.raw.numel() - GUARD_BYTES]

    @property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.raw[:GUARD_BYTES], self.raw[self.raw.numel() - GUARD_BYTES :]

    def intact(self) -> bool:
        return all(bool((end == GUARD).all()) for end in self.ends)

    def mend(self) -> None:
        for end in self.ends:
            end.fill_(GUARD)


def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Guarded:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = torch.full((nbytes + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
    return Guarded(raw, raw[GUARD_BYTES : GUARD_BYTES + nbytes].view(dtype).view(shape))


class Buffers:
    """All tensors of one task on one workload."""

    def __init__(self, task: Task, dims: Dims, device: str) -> None:
        self.task, self.dims, self.device = task, dims, device
        arrays = task.arrays(dims).values()
        self.all = {array.name: guarded(array.shape, getattr(torch, array.dtype), device) for array in arrays}

    def tensors(self, *, in_place: bool = False) -> dict[str, torch.Tensor]:
        """Returns the tensors by name. ``in_place``: an output with ``in_place_of`` is the tensor of that input."""
        tensors = {name: buffer.tensor for name, buffer in self.all.items()}
        if in_place:
            for name, output in self.task.outputs.items():
                tensors[name] = tensors[output.in_place_of or name]
        return tensors

    def draw(self, seed: int) -> None:
        """Draws new inputs. Equal seeds give equal values."""
        generator = torch.Generator(self.device).manual_seed(seed)
        for name in self.task.inputs:
            _fill(self.all[name].tensor, self.task.distribution(name, self.dims), generator)

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
        return {name: _checksum(self.all[name].middle) for name in self.task.inputs}

    def slice_of(self, name: str, tensor: torch.Tensor, part: Slice) -> Array:
        """Copies a slice of a tensor to the host, in float64, or in int64 for an integer dtype."""
        for axis, indices in axes_of(self.task.tensors[name].shape, part).items():
            tensor = tensor.index_select(axis, torch.tensor(indices, device=tensor.device))
        wide = torch.int64 if is_whole(self.task.tensors[name].dtype) else torch.float64
        return np.asarray(tensor.to(wide).cpu().numpy())

    def input_slices(self, part: Slice) -> dict[str, Array]:
        return {name: self.slice_of(name, self.all[name].tensor, part) for name in self.task.inputs}


class InputSets:
    """Two sets of inputs that alternate at the same addresses while candidates are timed.

    If an input is larger than `SWAPPED_BYTES`, only its first bytes alternate. Arrays of offsets do not alternate: a
    mixture of two would not be valid, and the work may depend on them.

    seeds: the seeds of the two sets. The second set is used first.
    """

    def __init__(self, buffers: Buffers, seeds: tuple[int, int]) -> None:
        self.buffers, self.current = buffers, 1
        self._sets: list[dict[str, torch.Tensor]] = []
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

    def _parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each input's name, and the part of its bytes that differs between the two sets."""
        for name in self.buffers.task.inputs:
            whole = self.buffers.all[name].middle
            offsets = self.buffers.task.distribution(name, self.buffers.dims).steps is not None
            yield name, whole[: 0 if offsets else SWAPPED_BYTES]


def _fill(tensor: torch.Tensor, how: Distribution, generator: torch.Generator) -> None:
    if how.steps is not None or how.like:
        rng = np.random.default_rng(generator.initial_seed())
        tensor.copy_(torch.from_numpy(draw(how, tuple(tensor.shape), rng)).to(tensor.device))
        return
    wide = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    if how.kind == "normal":
        wide.normal_(how.a, how.b, generator=generator)
    elif how.kind == "uniform":
        wide.uniform_(how.a, how.b, generator=generator)
    else:
        wide.random_(int(how.a), int(how.b), generator=generator)
    tensor.copy_(wide.to(tensor.dtype))


def _checksum(data: torch.Tensor) -> int:
    """Returns a checksum of the bytes and their order."""
    words, odd = data[: data.numel() // 8 * 8].view(torch.int64), data[data.numel() // 8 * 8 :]
    total = int((odd.to(torch.int64) * torch.arange(1, odd.numel() + 1, device=data.device)).sum())
    for start in range(0, words.numel(), CHUNK):
        part = words[start : start + CHUNK]
        mixed = part ^ (torch.arange(start + 1, start + 1 + part.numel(), device=data.device) * 0x9E3779B97F4A7C1)
        for shift in (29, 32):  # wrapping products, as in splitmix64
            mixed = (mixed ^ (mixed >> shift)) * 0x3F58476D1CE4E5B9
        total += int(mixed.sum())
    return total % (1 << 64)


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
