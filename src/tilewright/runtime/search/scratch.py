"""The memory that trials write to: kept before them, given back after them, to the byte (requirements A-41, X-08).

A trial writes into the caller's own arrays, since those are what the deployed launch will see: their addresses,
strides and neighbours. So what they hold is copied first and put back afterwards, whatever happens in between.
Views of one allocation that overlap are copied once. All of it is queued on the current stream.

torch holds the copies; it is imported only inside functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tilewright.errors import MachineError
from tilewright.runtime.arrays import is_array
from tilewright.task.strides import span

SPARSE = 2
"""A view that lies in more than this many times its own bytes is copied element by element: what lies between
its elements may be gigabytes that the kernel has nothing to do with."""


class NoRoom(Exception):
    """There is not enough memory to keep what trials would overwrite."""


class DeviceLost(MachineError):
    """The GPU's context is broken, or a kernel does not end: nothing more can run in this process."""


def arrays_of(args: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """The arrays of a launch by the names of their parameters; those of a list as ``name[0]``, ``name[1]`` …"""
    found: dict[str, Any] = {}
    for name, value in zip(names, args, strict=True):
        if is_array(value):
            found[name] = value
        elif isinstance(value, (list, tuple)):
            found |= {f"{name}[{n}]": one for n, one in enumerate(value) if is_array(one)}
    return found


def tensor_of(array: Any) -> Any:
    """The array as a torch tensor on the same memory."""
    import torch

    return array.detach() if isinstance(array, torch.Tensor) else torch.as_tensor(array, device="cuda")


def extent(tensor: Any) -> tuple[int, int]:
    """The addresses between which its elements lie; an empty one has none."""
    start = tensor.data_ptr()
    return start, start + span(tensor.shape, tensor.stride()) * tensor.element_size()


def overlapping(arrays: Mapping[str, Any], others: Collection[str]) -> frozenset[str]:
    """The names of all arrays that share memory with one of ``others``, which are among them."""
    extents = {name: extent(tensor_of(array)) for name, array in arrays.items()}
    return frozenset(
        name
        for name, (low, high) in extents.items()
        if any(low < extents[other][1] and extents[other][0] < high for other in others)
    )


def have_overlaps(arrays: Mapping[str, Any]) -> bool:
    extents = sorted(extent(tensor_of(array)) for array in arrays.values())
    return any(after[0] < before[1] for before, after in pairwise(extents))


@dataclass(frozen=True)
class _KeptMemory:
    """Some of the memory that is kept, and what it held."""

    place: Any
    held: Any


class Kept:
    """What arrays held when this was made."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        """Raises NoRoom where the copies do not fit."""
        import torch

        try:
            self._parts = [_KeptMemory(place, place.clone()) for place in _places([tensor_of(one) for one in arrays])]
        except torch.OutOfMemoryError:
            needed = sum(one.numel() * one.element_size() for one in map(tensor_of, arrays))
            raise NoRoom(f"{needed / 2**30:.3g} GiB of written arrays cannot be kept beside them") from None

    def restore(self) -> None:
        for part in self._parts:
            part.place.copy_(part.held)


@contextmanager
def keeping(arrays: Sequence[Any]) -> Iterator[Kept]:
    """What ``arrays`` hold now they hold afterwards, also after an error and after Ctrl-C; not after DeviceLost,
    where nothing can be written any more. Raises NoRoom."""
    kept = Kept(arrays)
    try:
        yield kept
    except DeviceLost:
        raise
    except BaseException:
        _surely(kept)
        raise
    else:
        _surely(kept)


def _surely(kept: Kept) -> None:
    """A Ctrl-C that comes while the arrays are given back waits until they are."""
    try:
        kept.restore()
    except KeyboardInterrupt:
        kept.restore()
        raise


def poison(array: Any) -> None:
    """Sets every bit of an array that the next launch must write, so that what it leaves out shows (trust.md 1):
    a NaN in each floating-point dtype, -1 or the largest number in whole ones. A boolean has no third value."""
    import torch

    tensor = tensor_of(array)
    if tensor.dtype != torch.bool:
        whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        tensor.view(whole).fill_(-1)


def _places(tensors: Sequence[Any]) -> list[Any]:
    """Views that together are all elements of ``tensors``: bytes of storages, each byte once, where elements lie
    densely enough."""
    dense, places = [], []
    for tensor in tensors:
        low, high = extent(tensor)
        if high - low > SPARSE * tensor.numel() * tensor.element_size():
            places.append(tensor)
        elif high > low:
            dense.append((str(tensor.device), low, high, tensor))
    covered: dict[str, int] = {}
    for device, low, high, tensor in sorted(dense, key=lambda one: one[:3]):
        start = max(low, covered.get(device, low))
        if start < high:
            places.append(_bytes(tensor, start, high))
            covered[device] = high
    return places


def _bytes(tensor: Any, low: int, high: int) -> Any:
    """The bytes between two addresses of the tensor's storage."""
    import torch

    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        storage, low - storage.data_ptr(), (high - low,), (1,)
    )
