"""What the caller's program hands over: arrays, kernels and streams, with only those members that are used here.

An array is a torch tensor on any device, or any object with ``__cuda_array_interface__``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple, Protocol, SupportsInt, TypeAlias, TypedDict, TypeGuard

from tilewright.task.tensors import row_major

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class LiveArray(Protocol):
    """A torch tensor. Strides count elements."""

    is_cuda: bool
    shape: tuple[int, ...]
    dtype: Hashable
    device: Hashable

    def stride(self) -> tuple[int, ...]: ...
    def data_ptr(self) -> int: ...
    def get_device(self) -> int: ...
    def element_size(self) -> int: ...
    def numel(self) -> int: ...
    def untyped_storage(self) -> LiveArray: ...
    def numpy(self) -> npt.NDArray[np.generic]: ...
    def __getitem__(self, place: slice) -> LiveArray: ...
    def __getattr__(self, operation: str) -> Callable[..., LiveArray]:
        """All other operations of torch that are used here return tensors."""


class CudaArrayInterface(TypedDict, total=False):
    """Version 3; ``strides`` in bytes, None where the array is row-major."""

    shape: tuple[int, ...]
    typestr: str
    data: tuple[int, bool]
    strides: tuple[int, ...] | None


class InterfaceArray(Protocol):
    """An array of the device that is not torch's."""

    __cuda_array_interface__: CudaArrayInterface


CallerArray: TypeAlias = LiveArray | InterfaceArray
CallValue: TypeAlias = "CallerArray | Hashable | Sequence[CallValue]"
"""An argument of a launch: an array, a list of arrays, a number or a flag."""


class KernelObject(Protocol):
    """What ``@ct.kernel`` made."""

    _pyfunc: FunctionType
    _compiler_options: Hashable

    def replace_hints(self, **hints: Hashable) -> KernelObject: ...


class StreamObject(Protocol):
    """A stream of torch. Those of cuda.core and CuPy have ``handle`` or ``ptr`` instead."""

    cuda_stream: int


class CudaEvent(Protocol):
    """An event of torch."""

    def record(self, stream: Stream = None) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: CudaEvent) -> float: ...


Stream: TypeAlias = StreamObject | SupportsInt | None
"""An int is the CUDA handle; 0 and None are the default stream."""


class ArrayFacts(NamedTuple):
    """``strides`` in elements; ``address`` of the first element, 0 where there is no memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int


def is_array(value: object) -> TypeGuard[CallerArray]:
    return _is_tensor(value) or hasattr(value, "__cuda_array_interface__")


def facts_of(value: object) -> ArrayFacts | None:
    """None if ``value`` is not an array."""
    if _is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        address = 0 if getattr(value, "is_meta", False) else int(value.data_ptr())
        return ArrayFacts(dtype, tuple(map(int, value.shape)), tuple(map(int, value.stride())), address)
    interface: CudaArrayInterface | None = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    import numpy as np

    kind, shape = np.dtype(interface["typestr"]), tuple(map(int, interface["shape"]))
    given = interface.get("strides")
    strides = tuple(int(stride) // kind.itemsize for stride in given) if given else row_major(shape)
    return ArrayFacts(kind.name, shape, strides, int(interface["data"][0]))


def _is_tensor(value: object) -> TypeGuard[LiveArray]:
    return hasattr(value, "data_ptr") and hasattr(value, "stride")
