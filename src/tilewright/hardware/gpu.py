"""Which GPU is here, asked of the driver alone: no torch, no context, a few milliseconds."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tilewright.hardware.architectures import Board, board_for_gpu


@dataclass(frozen=True)
class Gpu:
    name: str
    arch: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    cuda_driver: str
    """The newest CUDA that the driver supports, e.g. ``13.0``."""

    @property
    def board(self) -> Board:
        """What this GPU has. Raises as `hardware.board_for_gpu` does."""
        return board_for_gpu(self.name, self.sms, self.memory_bytes, arch=self.arch)


_asking = threading.Lock()

_ATTRIBUTES: Mapping[str, int] = {"sms": 16, "l2_bytes": 38, "major": 75, "minor": 76}
"""CUdevice_attribute numbers (CUDA Driver API, cuda.h)."""


def detect() -> Gpu | None:
    """The first visible GPU, or None where there is no driver or no device. Asked once a process."""
    with _asking:  # a second thread waits for the answer of the first
        return _detected()


def has_driver() -> bool:
    """Whether there is a driver at all; unlike `detect` this does not initialise it, which takes 0.2 s."""
    return _driver() is not None


def make_context() -> None:
    """Makes the CUDA context that torch will use; other threads run meanwhile."""
    context, device, driver = ctypes.c_void_p(), ctypes.c_int(), _driver()
    if driver is not None and detect() is not None and not driver.cuDeviceGet(ctypes.byref(device), 0):
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@cache
def _detected() -> Gpu | None:
    driver = _driver()
    if driver is None:
        return None
    device, count, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return None
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    name, memory = ctypes.create_string_buffer(128), ctypes.c_size_t()
    driver.cuDeviceGetName(name, 128, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    values, value = {}, ctypes.c_int()
    for key, number in _ATTRIBUTES.items():
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        values[key] = value.value
    return Gpu(
        name=name.value.decode(),
        arch=f"sm_{values['major']}{values['minor']}",
        sms=values["sms"],
        memory_bytes=memory.value,
        l2_bytes=values["l2_bytes"],
        cuda_driver=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )
