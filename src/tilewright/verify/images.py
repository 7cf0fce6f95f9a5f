"""Makes images. An image is a padded buffer: a tensor, filled with data or poison, with guard bytes around it and
between its rows.

Every engine runs on the same images. The guards of inputs and outputs differ, to catch a kernel that copies bytes
beyond an input to bytes beyond an output.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.task.task import Task
from tilewright.task.tensors import ITEM_BYTES, ArraySpec, Dims, row_major, span
from tilewright.verify.arrays import Array, NamedArrays

SHARE_OF_MEMORY = 0.5
"""A case may need this fraction of the machine's memory. A case that needs more is reported as unverified."""
Bytes = npt.NDArray[np.uint8]

ROW_MAJOR = "row-major"
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
GUARD_BYTES = 1 << 12  # guard bytes on each side; a multiple of `ALIGNMENT`
ALIGNMENT = 256  # bytes; the alignment of GPU allocators
SLICED_BY = 24  # elements between the rows of a sliced view of the first tensor
SLICED_FURTHER = 16  # additional elements for each tensor before it, so that no two tensors have equal strides
POISONS = (0xFF, 0x6B)  # the bytes of outputs before a run: NaN in every float format, and a large finite number
OUTPUT_GUARD = 0x5A  # the guard of an output is the poison with these bits flipped


def storage(dtype: str) -> np.dtype[Any]:
    """Returns the NumPy dtype for a dtype name of a task."""
    return np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)


@dataclass
class Image:
    """A tensor and the bytes around it.

    strides: in elements.
    offset: bytes from the start of ``raw`` to the first element. Every engine puts ``raw`` at an aligned address.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    raw: Bytes = field(repr=False)
    guard: int = POISONS[0]

    @property
    def array(self) -> Array:
        """The elements of the tensor, as a view of ``raw``."""
        steps = tuple(stride * self.itemsize for stride in self.strides)
        return np.ndarray(self.shape, storage(self.dtype), self.raw.data, self.offset, steps)

    @property
    def spec(self) -> ArraySpec:
        """The tensor's specification, which a launch function gets if there is no GPU."""
        strides = None if self.strides == row_major(self.shape) else self.strides
        return ArraySpec(self.name, self.shape, self.dtype, strides, self.offset % ALIGNMENT)

    @property
    def content(self) -> bytes:
        return np.ascontiguousarray(self.array).tobytes()

    def damaged(self) -> int | None:
        """Returns the position of the first changed guard byte, in bytes from the first element. None if no guard
        changed."""
        inside = replace(self, raw=np.zeros_like(self.raw))
        fill(inside, 1)
        where = np.flatnonzero((self.raw != self.guard) & (inside.raw == 0))
        return int(where[0]) - self.offset if where.size else None

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]


def strides_of(shape: tuple[int, ...], layout: str, place: int = 0) -> tuple[int, ...]:
    """Returns the strides of a ``layout``, in elements. A tensor with one axis is always row-major.

    place: the number of the tensor (`place_of`). Sliced views with different numbers have different strides.
    """
    if layout == "transposed" and len(shape) > 1:
        swapped = row_major((*shape[:-2], shape[-1], shape[-2]))
        return (*swapped[:-2], swapped[-1], swapped[-2])
    if layout == "sliced" and len(shape) > 1:
        return row_major((*shape[:-1], shape[-1] + SLICED_BY + place * SLICED_FURTHER))
    return row_major(shape)


def place_of(task: Task, name: str) -> int:
    """Returns the number of a tensor in the task's order. An output that overwrites an input has the input's number."""
    output = task.outputs.get(name)
    return list(task.tensors).index((output and output.in_place_of) or name)


def image_of(spec: ArraySpec, layout: str, guard: int, *, shift: int = 0, place: int = 0) -> Image:
    """Makes an image whose bytes are all ``guard``.

    shift: extra bytes before the tensor.
    place: the number of the tensor (`place_of`). Sliced views with different numbers have different strides.
    """
    strides = strides_of(spec.shape, layout, place)
    item = ITEM_BYTES[spec.dtype]
    offset = GUARD_BYTES + shift + (item if layout == "misaligned" else 0)
    size = offset + span(spec.shape, strides) * item + GUARD_BYTES
    raw = np.full(-(-size // ALIGNMENT) * ALIGNMENT, guard, np.uint8)
    return Image(spec.name, spec.dtype, spec.shape, strides, offset, raw, guard)


def images_for(
    task: Task, dims: Dims, inputs: NamedArrays, layout: str, poison: int, *, shift: int = 0
) -> dict[str, Image]:
    """Makes the images of all tensors, by name. Inputs contain data.

    Outputs contain poison, or the data of the input that they update.
    """
    images = {}
    for name, spec in task.arrays(dims).items():
        guard = poison if name in inputs else poison ^ OUTPUT_GUARD
        images[name] = image_of(spec, layout, guard, shift=shift, place=place_of(task, name))
        if (source := held_before(task, name)) is not None:
            images[name].array[...] = inputs[source]
        else:
            fill(images[name], poison)
    return images


def too_large(task: Task, dims: Dims, compared: Dims) -> str | None:
    """Returns the reason why a case with these dimensions does not fit in memory; None if it fits.

    The estimate counts the tensors, their images, and the float64 arrays for the drawing and for the reference.

    compared: the dimensions of the slice that the reference computes.
    """
    arrays = task.arrays(dims).values()
    needed = 6 * sum(array.nbytes for array in arrays) + 32 * max(math.prod(array.shape) for array in arrays)
    return over_share(needed + reference_bytes(task, compared), memory_of_machine())


def reference_bytes(task: Task, compared: Dims) -> int:
    """Estimates the memory of the reference, and of its inputs and outputs in float64."""
    return 48 * sum(math.prod(array.shape) for array in task.arrays(compared).values())


def over_share(needed: int, memory: int, whose: str = "this machine") -> str | None:
    """Returns a reason if ``needed`` bytes are more than the allowed share of ``memory`` (bytes), else None."""
    if needed <= SHARE_OF_MEMORY * memory:
        return None
    return (
        f"needs about {needed / 2**30:.3g} GiB of memory, more than {SHARE_OF_MEMORY:.0%} of {whose}'s "
        f"{memory / 2**30:.3g} GiB; let the task serve smaller shapes, or declare dimensions independent"
    )


def memory_of_machine() -> int:
    """Returns the memory of this machine in bytes, or the container's limit if that is lower."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        memory = min(memory, int(CONTAINER_LIMIT.read_text()))  # the file says ``max`` if there is no limit
    return memory


def held_before(task: Task, name: str) -> str | None:
    """Returns the input whose values a tensor holds before a launch; None for an output that holds poison."""
    output = task.outputs.get(name)
    return name if output is None else output.updates


def fill(image: Image, poison: int) -> None:
    size = image.itemsize
    image.array.view(f"u{size}")[...] = int.from_bytes(bytes([poison]) * size, "little")


@dataclass(frozen=True)
class HostMemory:
    """The images of one run, as a `judge.RunMemory`. ``replaced``: inputs that the kernel may overwrite."""

    images: Mapping[str, Image]
    inputs: NamedArrays
    replaced: Collection[str] = ()

    def damaged(self) -> str | None:
        for name, image in self.images.items():
            if (place := image.damaged()) is not None:
                return f"'{name}', {place} bytes from its first element"
        return None

    def changed(self) -> str | None:
        for name, before in self.inputs.items():
            if name not in self.replaced and self.images[name].content != before.tobytes():
                return f"'{name}', but no output is declared in place of it"
        return None
