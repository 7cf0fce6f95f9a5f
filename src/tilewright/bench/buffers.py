"""The tensors of a task on a device: guarded, poisoned, drawn afresh.

Every tensor lies between two guard zones; an output is filled with a poison before each run. torch
is used for memory, random numbers and comparing on the device; it is imported only here and in the
other modules that the worker process runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilewright.task import Dims, Distribution, Task
from tilewright.verify import Array, Slice, axes_of

GUARD_BYTES = 1 << 16
"""On each side. A multiple of 256, so that a tensor is as aligned as torch's allocator makes it."""
GUARD = 0xA5
POISONS = (0xFF, 0x6B)
"""Two patterns, since recycled memory may happen to hold one: NaN in every float format, and a large
finite number (trust.md 1)."""


@dataclass(frozen=True)
class Guarded:
    """One tensor and the bytes round it."""

    raw: torch.Tensor
    tensor: torch.Tensor

    @property
    def middle(self) -> torch.Tensor:
        return self.raw[GUARD_BYTES : self.raw.numel() - GUARD_BYTES]

    def intact(self) -> bool:
        """Whether nobody wrote outside (trust.md 9)."""
        ends = (self.raw[:GUARD_BYTES], self.raw[self.raw.numel() - GUARD_BYTES :])
        return all(bool((end == GUARD).all()) for end in ends)


def guarded(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Guarded:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = torch.full((nbytes + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
    return Guarded(raw, raw[GUARD_BYTES : GUARD_BYTES + nbytes].view(dtype).view(shape))


class Buffers:
    """All tensors of one task on one workload."""

    def __init__(self, task: Task, dims: Dims, device: str) -> None:
        self.task, self.dims, self.device = task, dims, device
        self.all: dict[str, Guarded] = {
            name: guarded(array.shape, getattr(torch, array.dtype), device)
            for name, array in task.arrays(dims).items()
        }

    def tensors(self, *, in_place: bool = False) -> dict[str, torch.Tensor]:
        """By name. ``in_place``: an output that is deployed over an input is that input."""
        found = {name: one.tensor for name, one in self.all.items()}
        if in_place:
            for name, output in self.task.outputs.items():
                found[name] = found[output.in_place_of or name]
        return found

    def draw(self, seed: int) -> None:
        """Fresh inputs; equal seed, equal values."""
        generator = torch.Generator(self.device).manual_seed(seed)
        for name, spec in self.task.inputs.items():
            _fill(self.all[name].tensor, spec.distribution, generator)

    def poison(self, byte: int) -> None:
        for name in self.task.outputs:
            self.all[name].middle.fill_(byte)

    def out_of_bounds(self) -> list[str]:
        return [name for name, one in self.all.items() if not one.intact()]

    def checksums(self) -> dict[str, int]:
        """Of the inputs' bytes: equal checksum, untouched (trust.md 10)."""
        return {name: _checksum(self.all[name].middle) for name in self.task.inputs}

    def slice_of(self, name: str, tensor: torch.Tensor, part: Slice) -> Array:
        """A slice of one tensor on the host, in float64."""
        for axis, indices in axes_of(self.task.tensors[name].shape, part).items():
            tensor = tensor.index_select(axis, torch.tensor(indices, device=tensor.device))
        return tensor.to(torch.float64).cpu().numpy()

    def input_slices(self, part: Slice) -> dict[str, Array]:
        return {name: self.slice_of(name, self.all[name].tensor, part) for name in self.task.inputs}

    def output_slices(self, part: Slice, tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
        return {name: self.slice_of(name, tensors[name], part) for name in self.task.outputs}


def _fill(tensor: torch.Tensor, how: Distribution, generator: torch.Generator) -> None:
    wide = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    if how.kind == "normal":
        wide.normal_(how.a, how.b, generator=generator)
    elif how.kind == "uniform":
        wide.uniform_(how.a, how.b, generator=generator)
    else:
        wide.random_(int(how.a), int(how.b), generator=generator)
    tensor.copy_(wide.to(tensor.dtype))


def _checksum(data: torch.Tensor) -> int:
    words = data[: data.numel() // 8 * 8].view(torch.int64)
    odd = data[data.numel() // 8 * 8 :].to(torch.int64)
    weights = torch.arange(1, odd.numel() + 1, device=data.device)
    mixed = (words ^ (words >> 17)) * 0x9E3779B97F4A7C1  # a position-free sum of mixed words, wrapping
    return int(mixed.sum()) ^ int((odd * weights).sum())


def whole_difference(out: Any, other: Any) -> tuple[float, bool]:
    """Largest |a − b| / (|b| + rms(b)) over every element, on the device, and whether ``out`` is finite."""
    worst, finite = 0.0, True
    wide_rms = float(other.to(torch.float32).square().mean().sqrt())
    for a, b in zip(out.reshape(-1).split(1 << 26), other.reshape(-1).split(1 << 26), strict=True):
        a, b = a.to(torch.float32), b.to(torch.float32)
        finite = finite and bool(torch.isfinite(a).all())
        worst = max(worst, float(((a - b).abs() / (b.abs() + max(wide_rms, 1e-30))).max()))
    return worst, finite
