"""Which GPU is here, asked of the driver alone: no torch, no context, a few milliseconds."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Gpu:
    name: str
    arch: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    cuda_driver: str
    """The newest CUDA that the driver supports, e.g. ``13.0``."""


_ATTRIBUTES: Mapping[str, int] = {"sms": 16, "l2_bytes": 38, "major": 75, "minor": 76}
"""CUdevice_attribute numbers (CUDA Driver API, cuda.h)."""


@cache
def detect() -> Gpu | None:
    """The first visible GPU, or None where there is no driver or no device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, count, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    name, memory = ctypes.create_string_buffer(128), ctypes.c_size_t()
    driver.cuDeviceGetName(name, 128, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    values = {key: _attribute(driver, number, device) for key, number in _ATTRIBUTES.items()}
    return Gpu(
        name=name.value.decode(),
        arch=f"sm_{values['major']}{values['minor']}",
        sms=values["sms"],
        memory_bytes=memory.value,
        l2_bytes=values["l2_bytes"],
        cuda_driver=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


def _attribute(driver: Any, number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value
