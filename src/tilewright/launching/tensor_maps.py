"""Makes tensor maps (CUtensorMap) as Triton's launcher does.

Triton's code is in triton/backends/nvidia: ``make_tensordesc_arg`` in driver.py, ``fillTMADescriptor`` (3.6) and
``fillTMADescriptorTiled`` (3.9) in driver.c.

The driver is called without cuda-bindings. Some versions of cuda-bindings did not align a tensor map to 64 bytes, which
ends the process (NVIDIA/cuda-python, pull request 1692).
"""

from __future__ import annotations

import ctypes
from functools import cache

from tilewright.worker.messages import TENSOR_MAP_BYTES, TensorMap

NO_INTERLEAVE = 0
PROMOTE_TO_128_BYTES = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B."""
FILL_ZEROS, FILL_NANS = 0, 1
"""CU_TENSOR_MAP_FLOAT_OOB_FILL_*: NONE, and NAN_REQUEST_ZERO_FMA."""
SMALL_BYTES, LAST_WRONG_DRIVER, WRONG_BIT = 128 << 10, 13010, 1 << 21
"""Drivers up to version `LAST_WRONG_DRIVER` set a wrong bit in the map of a tensor with fewer than `SMALL_BYTES` bytes.
The bit is `WRONG_BIT` in the second word. Triton 3.9 and CUTLASS clear this bit."""
_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64


def encoded(tensor: TensorMap, address: int) -> bytes:
    """Returns the tensor map of a tensor at ``address``. Raises RuntimeError if the driver refuses it."""
    layout, rank, driver = tensor.layout, len(tensor.shape), _driver()
    shape = [*tensor.shape[:-1], tensor.shape[-1] * (2 if layout.pairs else 1)]
    steps = [stride * layout.element_bytes for stride in tensor.strides]
    place = ctypes.create_string_buffer(2 * TENSOR_MAP_BYTES)
    aligned = -(-ctypes.addressof(place) // TENSOR_MAP_BYTES) * TENSOR_MAP_BYTES
    status = driver.cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned), layout.element, rank, ctypes.c_void_p(address),
        (_u64 * rank)(*shape[::-1]), (_u64 * rank)(*steps[-2::-1]), (_u32 * rank)(*layout.box[::-1]),
        (_u32 * rank)(*[1] * rank),
        NO_INTERLEAVE, layout.swizzle, PROMOTE_TO_128_BYTES, FILL_NANS if tensor.nan else FILL_ZEROS,
    )  # fmt: skip
    if status:
        raise RuntimeError(f"the driver refuses the descriptor of tensor '{tensor.tensor}': error {status} ({tensor})")
    last = sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
    if last + 1 < SMALL_BYTES and _version(driver) <= LAST_WRONG_DRIVER:
        _u64.from_address(aligned + 8).value &= ~WRONG_BIT
    return ctypes.string_at(aligned, TENSOR_MAP_BYTES)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _version(driver: ctypes.CDLL) -> int:
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    return version.value
