"""Types of the objects that the user's program passes in: arrays, kernels and streams.

An array is a torch tensor on any device, or any object with ``__cuda_array_interface__``. Each type has only the
members that Tilewright uses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsInt, TypeAlias, TypedDict, TypeGuard

from tilewright.task.tensors import alignment_of, row_major

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class LiveArray(Protocol):
    """A torch tensor. Strides are in elements."""

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
        """Returns another method of the tensor. Every method that Tilewright uses returns a tensor."""


class CudaArrayInterface(TypedDict, total=False):
    """Version 3 of the CUDA array interface. ``strides`` are in bytes; None means row-major."""

    shape: tuple[int, ...]
    typestr: str
    data: tuple[int, bool]
    strides: tuple[int, ...] | None


class InterfaceArray(Protocol):
    """A GPU array of another library than torch."""

    __cuda_array_interface__: CudaArrayInterface


CallerArray: TypeAlias = LiveArray | InterfaceArray
CallValue: TypeAlias = "CallerArray | Hashable | Sequence[CallValue]"
"""An argument of a launch: an array, a list of arrays, a number or a flag."""


class KernelObject(Protocol):
    """A kernel object, as ``@ct.kernel`` returns it."""

    _pyfunc: FunctionType
    _compiler_options: Hashable

    def replace_hints(self, **hints: Hashable) -> KernelObject: ...


class StreamObject(Protocol):
    """A torch stream. Streams of cuda.core and CuPy have ``handle`` or ``ptr`` instead of ``cuda_stream``."""

    cuda_stream: int


class CudaEvent(Protocol):
    """A torch event. `elapsed_time` is in milliseconds."""

    def record(self, stream: Stream = None) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: CudaEvent) -> float: ...


STREAM_HANDLES = ("cuda_stream", "handle", "ptr")
"""The attributes in which stream objects of torch, cuda.core and CuPy have the handle."""
Stream: TypeAlias = StreamObject | SupportsInt | None
"""A stream as callers pass it. An int is the CUDA handle of the stream; 0 and None mean the default stream."""


def handle_of(stream: Stream) -> int:
    """Returns the CUDA handle of a stream; 0, the default stream, for None."""
    named: Any = next((getattr(stream, name) for name in STREAM_HANDLES if hasattr(stream, name)), stream)
    return int(named or 0)


class ArrayFacts(NamedTuple):
    """The dtype, layout and address of an array. ``strides`` are in elements. ``address`` is the address of the first
    element, or 0 if the array has no memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int

    @property
    def alignment(self) -> int:
        """The part of the address that compilers see: the address modulo 16."""
        return alignment_of(self.address)


def is_array(value: object) -> TypeGuard[CallerArray]:
    return _is_tensor(value) or hasattr(value, "__cuda_array_interface__")


def facts_of(value: object) -> ArrayFacts | None:
    """Returns the `ArrayFacts` of ``value``; None if ``value`` is not an array."""
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
