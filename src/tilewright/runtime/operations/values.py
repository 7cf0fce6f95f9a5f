"""Follows the values of a program's tensors: which operation made each, and whether two are the same.

Each tensor has a *number*: a hash of the operation that made it and of the numbers of its inputs. Two results with
equal numbers were computed in the same way from the same values. A result that depends on random numbers gets a number
of its own. A small tensor from outside has the hash of its bits, another one a number of its own. Writing to a tensor
changes the numbers of all tensors that share its memory.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from torch import Tensor

HASHED_BYTES = 1 << 20
"""Tensors from outside up to this size are compared by their bits."""


class SharedMemory:
    """The memory that a tensor and its views share. ``last``: the index of the value that was last written to it."""

    __slots__ = ("last", "written")

    def __init__(self) -> None:
        self.written, self.last = 0, -1


class Value:
    """The state of one tensor.

    index: the index of the value in the record. moved: whether it was, or comes from, a tensor that the program puts on
    its device by name. On a CPU, only this shows what would be on a GPU.
    """

    __slots__ = ("index", "memory", "moved", "own", "recording", "seen")

    def __init__(self, recording: Values, memory: SharedMemory, own: int, index: int, moved: bool) -> None:
        self.recording = recording
        self.memory, self.own, self.index, self.moved = memory, own, index, moved
        self.seen = memory.written

    def __deepcopy__(self, _: object) -> None:
        """A copy of a tensor is another tensor."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    @property
    def number(self) -> int:
        return self.own if self.memory.written == self.seen else hash((self.own, self.memory.written))


class Values:
    """The values of a run. ``types``: for each index, the number of its shape, type and device."""

    def __init__(self) -> None:
        self.types: list[int] = []
        self.kinds: dict[tuple[Any, ...], int] = {}
        self._fresh = count(1)
        self._owners: dict[int, Callable[[], Tensor | None]] = {}
        """Address of a storage → the tensor that has it, weakly."""
        import torch

        self._strided = torch.strided

    def fresh(self) -> int:
        """Returns a number that no other value has."""
        return hash(("fresh", next(self._fresh)))

    def of(self, tensor: Tensor) -> Value:
        """Returns the value of a tensor. A tensor from outside gets one."""
        value: Value | None = getattr(tensor, "_tilewright", None)
        return value if value is not None and value.recording is self else self._from_outside(tensor)

    def add(self, tensor: Tensor, memory: SharedMemory, number: int, moved: bool) -> Value:
        """Gives a tensor a new value."""
        value = Value(self, memory, number, self.index(tensor), moved)
        self._keep(tensor, value)
        return value

    def _keep(self, tensor: Tensor, value: Value) -> None:
        tensor._tilewright = value
        if tensor.layout is self._strided and not tensor._is_view():
            self._owners[tensor.untyped_storage()._cdata] = ref(tensor)

    def alive(self) -> list[int]:
        """Returns the indices of the values that the program still has."""
        return sorted(each.index for each in gc.get_objects() if type(each) is Value and each.recording is self)

    def index(self, tensor: Tensor) -> int:
        """Returns the index of one more value with the shape, type and device of a tensor."""
        kind = (tuple(tensor.shape), str(tensor.dtype)[6:], tensor.device.type, tensor.is_leaf and tensor.requires_grad)
        self.types.append(self.kinds.setdefault(kind, len(self.kinds)))
        return len(self.types) - 1

    def _from_outside(self, tensor: Tensor) -> Value:
        """Returns the value of a tensor that no recorded operation made. It may share the memory of a known one, as the
        ``data`` of a parameter does.
        """
        moved = tensor.device.type != "cpu"
        if tensor.layout is not self._strided:
            return self.add(tensor, SharedMemory(), self.fresh(), moved)
        owner = self._owners.get(tensor.untyped_storage()._cdata, _nothing)()
        known: Value | None = getattr(owner, "_tilewright", None)
        if known is not None and known.recording is self:
            at = (tensor.shape, tensor.stride(), tensor.storage_offset())
            value = Value(self, known.memory, hash((known.own, at)), known.index, known.moved)
            value.seen = known.seen
            self._keep(tensor, value)
            return value
        return self.add(tensor, SharedMemory(), self.fresh() if tensor.requires_grad else self._digest(tensor), moved)

    def _digest(self, tensor: Tensor) -> int:
        size = tensor.numel() * tensor.element_size()
        if tensor.device.type != "cpu" or size > HASHED_BYTES or not tensor.is_contiguous():
            return self.fresh()
        return hash((ctypes.string_at(tensor.data_ptr(), size) if size else b"", str(tensor.dtype), tensor.shape))


def _nothing() -> None:
    return None
