"""The memory round a tensor: guards on all sides, between the rows of a view, and poison inside.

An image is all that an engine needs to know of a tensor's memory, so guards, poison, strides and misalignment are the
same on every engine. The guards of inputs and outputs differ, so that a kernel is caught that copies what lies beyond
an input to what lies beyond an output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.task.task import Task
from tilewright.task.tensors import ITEM_BYTES, ArraySpec, Dims, row_major, span
from tilewright.verify.arrays import Array

Bytes = npt.NDArray[np.uint8]

ROW_MAJOR = "row-major"
GUARD_BYTES = 1 << 12
"""On each side. A multiple of `ALIGNMENT`."""
ALIGNMENT = 256
"""Bytes to which allocators on a GPU align."""
SLICED_BY = 24
"""Elements between the rows of a sliced view."""
POISONS = (0xFF, 0x6B)
"""What outputs hold before a run: NaN in every float format, and a large finite number."""
OUTPUT_GUARD = 0x5A
"""Differs from the poison by this pattern."""


def storage(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype of a task's dtype name."""
    return np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)


@dataclass
class Image:
    """A tensor within the bytes round it. ``strides`` are in elements, ``offset`` in bytes from the start
    of ``raw``, which begins at an aligned address wherever an engine puts it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    raw: Bytes = field(repr=False)
    guard: int = POISONS[0]

    @property
    def array(self) -> Array:
        """The elements: a view of ``raw``."""
        steps = tuple(stride * self.itemsize for stride in self.strides)
        return np.ndarray(self.shape, storage(self.dtype), self.raw.data, self.offset, steps)

    @property
    def spec(self) -> ArraySpec:
        """What a launch function gets for it where there is no device."""
        strides = None if self.strides == row_major(self.shape) else self.strides
        return ArraySpec(self.name, self.shape, self.dtype, strides, self.offset % ALIGNMENT)

    @property
    def content(self) -> bytes:
        """The bytes of the elements in index order."""
        return np.ascontiguousarray(self.array).tobytes()

    def damaged(self) -> int | None:
        """Bytes from the first element to the first byte outside that was written; None where there is none."""
        inside = replace(self, raw=np.zeros_like(self.raw))
        fill(inside, 1)
        where = np.flatnonzero((self.raw != self.guard) & (inside.raw == 0))
        return int(where[0]) - self.offset if where.size else None

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]


def strides_of(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides in elements of a view. A tensor with one axis has no other axis to swap, and no rows."""
    if layout == "transposed" and len(shape) > 1:
        swapped = row_major((*shape[:-2], shape[-1], shape[-2]))
        return (*swapped[:-2], swapped[-1], swapped[-2])
    if layout == "sliced" and len(shape) > 1:
        return row_major((*shape[:-1], shape[-1] + SLICED_BY))
    return row_major(shape)


def image_of(spec: ArraySpec, layout: str, guard: int, *, shift: int = 0) -> Image:
    """An image whose bytes are all ``guard``; ``shift`` bytes further from the start than needed."""
    strides = strides_of(spec.shape, layout)
    item = ITEM_BYTES[spec.dtype]
    offset = GUARD_BYTES + shift + (item if layout == "misaligned" else 0)
    size = offset + span(spec.shape, strides) * item + GUARD_BYTES
    raw = np.full(-(-size // ALIGNMENT) * ALIGNMENT, guard, np.uint8)
    return Image(spec.name, spec.dtype, spec.shape, strides, offset, raw, guard)


def images_for(
    task: Task, dims: Dims, inputs: Mapping[str, Array], layout: str, poison: int, *, shift: int = 0
) -> dict[str, Image]:
    """The images of all tensors: inputs filled, outputs poisoned or as what they update, guards round all."""
    images = {}
    for name, spec in task.arrays(dims).items():
        guard = poison if name in inputs else poison ^ OUTPUT_GUARD
        images[name] = image_of(spec, layout, guard, shift=shift)
        held = held_before(task, name)
        if held is not None:
            images[name].array[...] = inputs[held]
        else:
            fill(images[name], poison)
    return images


def held_before(task: Task, name: str) -> str | None:
    """The input whose values a tensor holds before a launch; None for an output that holds none."""
    output = task.outputs.get(name)
    return name if output is None else output.updates


def fill(image: Image, poison: int) -> None:
    """Makes every byte of the elements ``poison``."""
    size = image.itemsize
    image.array.view(f"u{size}")[...] = int.from_bytes(bytes([poison]) * size, "little")


@dataclass(frozen=True)
class HostMemory:
    """The images of one run as the judge asks of them. ``replaced``: inputs that the kernel may write."""

    images: Mapping[str, Image]
    inputs: Mapping[str, Array]
    replaced: Collection[str] = ()

    def damaged(self) -> str | None:
        for name, image in self.images.items():
            if (place := image.damaged()) is not None:
                return f"'{name}', {place} bytes from its first element"
        return None

    def changed(self) -> str | None:
        for name, before in self.inputs.items():
            if name not in self.replaced and self.images[name].content != before.tobytes():
                return f"'{name}', which no output declares to take the place of"
        return None
