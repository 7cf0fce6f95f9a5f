"""Saves the arrays that trials write, and restores them to the byte.

A trial writes into the caller's own arrays, because the deployed launch will have their addresses, strides and
neighbours. So their contents are copied before the trial and restored after it, even after an error. Memory that
several views share is copied once. All copies are queued on the current stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from tilewright.errors import MachineError
from tilewright.runtime.arrays import CallerArray, CallValue, LiveArray, is_array
from tilewright.task.tensors import span

SPARSE = 2
"""A view is copied element by element if its range of addresses has more than this many times its bytes. Gigabytes that
the kernel does not use may lie between the elements.
"""


class NoRoom(Exception):
    """There is too little memory for copies of the arrays that trials overwrite."""


class DeviceLost(MachineError):
    """The GPU's context is broken, or a kernel does not end. Nothing more can run in this process."""


def arrays_of(args: Sequence[CallValue], names: Sequence[str]) -> dict[str, CallerArray]:
    """Returns the arrays among ``args`` by parameter name. Arrays in a list are called ``name[0]``, ``name[1]`` …"""
    arrays: dict[str, CallerArray] = {}
    for name, value in zip(names, args, strict=True):
        if is_array(value):
            arrays[name] = value
        elif isinstance(value, (list, tuple)):
            arrays |= {f"{name}[{n}]": item for n, item in enumerate(value) if is_array(item)}
    return arrays


def tensor_of(array: CallerArray) -> LiveArray:
    """Returns a torch tensor on the array's memory."""
    import torch

    given: LiveArray = array.detach() if isinstance(array, torch.Tensor) else torch.as_tensor(array, device="cuda")
    return given


def address_range(tensor: LiveArray) -> tuple[int, int]:
    """Returns the addresses of the first element and of the end; they are equal for an empty tensor."""
    start = tensor.data_ptr()
    return start, start + span(tensor.shape, tensor.stride()) * tensor.element_size()


def overlapping(arrays: Mapping[str, CallerArray], others: Collection[str]) -> frozenset[str]:
    """Returns the names of all arrays that share memory with one of ``others``. ``others``: names in ``arrays``."""
    ranges = {name: address_range(tensor_of(array)) for name, array in arrays.items()}
    return frozenset(
        name
        for name, (low, high) in ranges.items()
        if any(low < ranges[other][1] and ranges[other][0] < high for other in others)
    )


def have_overlaps(arrays: Mapping[str, CallerArray]) -> bool:
    """Returns whether any two arrays share memory."""
    ranges = sorted(address_range(tensor_of(array)) for array in arrays.values())
    return any(after[0] < before[1] for before, after in pairwise(ranges))


class Kept:
    """A copy of the contents of arrays. The constructor raises NoRoom if the copy does not fit into memory."""

    def __init__(self, arrays: Sequence[CallerArray]) -> None:
        import torch

        tensors = list(map(tensor_of, arrays))
        try:
            self._copies = [(memory, memory.clone()) for memory in _memory_of(tensors)]
        except torch.OutOfMemoryError:
            needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            raise NoRoom(f"a copy of the written arrays ({needed / 2**30:.3g} GiB) does not fit into memory") from None

    def restore(self) -> None:
        for memory, copy in self._copies:
            memory.copy_(copy)


@contextmanager
def keeping(arrays: Sequence[CallerArray]) -> Iterator[Kept]:
    """Restores the contents of ``arrays`` at the end of the block, also after an error and after Ctrl-C. After
    DeviceLost nothing can be written. Raises NoRoom."""
    kept, lost = Kept(arrays), False
    try:
        yield kept
    except DeviceLost:
        lost = True
        raise
    finally:
        if not lost:
            try:
                kept.restore()
            except KeyboardInterrupt:  # restored again in full, then raised
                kept.restore()
                raise


def poison(array: CallerArray) -> None:
    """Sets every bit of an array: its elements become NaN, -1 or the largest integer. So elements that the next launch
    does not write are noticed. Booleans stay, because they have no invalid value."""
    import torch

    tensor = tensor_of(array)
    if tensor.dtype != torch.bool:
        whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        tensor.view(whole).fill_(-1)


def _memory_of(tensors: Sequence[LiveArray]) -> list[LiveArray]:
    """Returns views that together cover all elements of ``tensors``, each byte once. A view is a range of bytes, or a
    tensor whose elements lie far apart."""
    dense, views = [], []
    for tensor in tensors:
        low, high = address_range(tensor)
        if high - low > SPARSE * tensor.numel() * tensor.element_size():
            views.append(tensor)
        elif high > low:
            dense.append((str(tensor.device), low, high, tensor))
    covered: dict[str, int] = {}
    for device, low, high, tensor in sorted(dense, key=lambda entry: entry[:3]):
        start = max(low, covered.get(device, low))
        if start < high:
            views.append(bytes_of(tensor, start, high))
            covered[device] = high
    return views


def bytes_of(tensor: LiveArray, low: int, high: int) -> LiveArray:
    """Returns the bytes between two addresses of the tensor's storage."""
    import torch

    storage, size = tensor.untyped_storage(), (high - low,)
    empty: LiveArray = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, low - storage.data_ptr(), size, (1,))
