"""What a live array says of itself: torch's tensors on any device, and whatever has ``__cuda_array_interface__``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tilewright.task.strides import row_major


class ArrayFacts(NamedTuple):
    """``strides`` in elements; ``address`` of the first element, 0 where there is no memory."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int


def is_array(value: Any) -> bool:
    return _is_tensor(value) or hasattr(value, "__cuda_array_interface__")


def facts_of(value: Any) -> ArrayFacts | None:
    """None for what is no array."""
    if _is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        address = 0 if getattr(value, "is_meta", False) else int(value.data_ptr())
        return ArrayFacts(dtype, tuple(map(int, value.shape)), tuple(map(int, value.stride())), address)
    interface = getattr(value, "__cuda_array_interface__", None)
    return None if interface is None else _of_interface(interface)


def _of_interface(interface: Mapping[str, Any]) -> ArrayFacts:
    """Its strides are in bytes, or None where row-major."""
    import numpy as np

    dtype, shape = np.dtype(interface["typestr"]), tuple(map(int, interface["shape"]))
    given = interface.get("strides")
    strides = tuple(int(stride) // dtype.itemsize for stride in given) if given else row_major(shape)
    return ArrayFacts(dtype.name, shape, strides, int(interface["data"][0]))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "stride")
