"""Queries the driver for this machine's GPU (without torch), and NVML for throttling during a race."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from tilewright.hardware.architectures import Board, board_for_gpu
from tilewright.hardware.cuda_driver import cuda_driver
from tilewright.records import Json


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
        return board_for_gpu(self.name, self.sms, self.memory_bytes, arch=self.arch)


_asking = threading.Lock()

_ATTRIBUTES: Mapping[str, int] = {"sms": 16, "l2_bytes": 38, "major": 75, "minor": 76}
"""CUdevice_attribute numbers (CUDA Driver API, cuda.h)."""


def detect() -> Gpu | None:
    """Returns the first visible GPU, or None without a driver or a GPU. A process queries the driver once."""
    with _asking:  # a second thread waits for the first thread's result
        return _detected()


def visible() -> tuple[Gpu, ...]:
    """Returns all visible GPUs, by their index."""
    driver = cuda_driver()
    every = [_described(driver, index) for index in range(count())] if driver is not None else []
    return tuple(gpu for gpu in every if gpu is not None)


def bus_id(index: int) -> str | None:
    """Returns the PCI address of the visible GPU ``index``. NVML numbers all GPUs, also those that are not visible."""
    driver, device, text = cuda_driver(), ctypes.c_int(), ctypes.create_string_buffer(32)
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    return None if driver.cuDeviceGetPCIBusId(text, 32, device) else text.value.decode()


def count() -> int:
    """Returns how many GPUs the driver shows to this process."""
    driver, found = cuda_driver(), ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(found)):
        return 0
    return found.value


def make_context() -> None:
    """Makes the CUDA context that torch will use. Other Python threads continue meanwhile."""
    context, device, driver = ctypes.c_void_p(), ctypes.c_int(), cuda_driver()
    if driver is not None and detect() is not None and not driver.cuDeviceGet(ctypes.byref(device), 0):
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@cache
def _detected() -> Gpu | None:
    driver = cuda_driver()
    return _described(driver, 0) if driver is not None and count() else None


def _described(driver: Any, index: int) -> Gpu | None:
    """Returns the GPU with this index; None if the driver does not describe it. ``driver``: is initialised."""
    device, version = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return None
    name, memory = ctypes.create_string_buffer(128), ctypes.c_size_t()
    driver.cuDeviceGetName(name, 128, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    values, value = {}, ctypes.c_int()
    for key, number in _ATTRIBUTES.items():
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        values[key] = value.value
    arch, cuda = f"sm_{values['major']}{values['minor']}", f"{version.value // 1000}.{version.value % 1000 // 10}"
    return Gpu(name.value.decode(), arch, values["sms"], memory.value, values["l2_bytes"], cuda)


BUSY_PERCENT = 20
"""A GPU that was in use for more of the last second, while nothing of ours ran, is busy."""

DISTURBING = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake")
"""NVML's reasons for slower clocks that make the times of a round invalid. The software power cap is not among them,
because a kernel at full power meets this cap in production too."""

_REASONS = {  # nvml.h, nvmlClocksEventReason*
    "applications_clocks": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80,
}  # fmt: skip


class Monitor:
    """Reads clocks and throttling from NVML during a race."""

    def __init__(self, device: int = 0) -> None:
        self._clocks: list[int] = []
        self._reasons: set[str] = set()
        self._handle: Any = None
        self.unavailable: str | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: ModuleType = pynvml
            address = bus_id(device)
            by_address, by_index = pynvml.nvmlDeviceGetHandleByPciBusId, pynvml.nvmlDeviceGetHandleByIndex
            self._handle = by_address(address.encode()) if address else by_index(device)
        except ImportError:
            self.unavailable = "NVML is not installed (pip install nvidia-ml-py)"
        except Exception as error:  # NVML's own error class exists only where it is installed
            self.unavailable = f"NVML does not answer: {error}"

    def disturbance(self) -> str | None:
        """Returns the reason to discard the last round, such as throttling, or None. Also records the clock frequency.

        Takes microseconds.
        """
        if self._handle is None:
            return None
        try:
            mask = int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
            self._clocks.append(int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)))
        except Exception as error:
            self.unavailable, self._handle = f"NVML stopped answering: {error}", None
            return None
        active = {name for name, bit in _REASONS.items() if mask & bit}
        self._reasons |= active
        bad = sorted(active & set(DISTURBING))
        return f"the GPU was throttled: {', '.join(bad)}" if bad else None

    def busy(self) -> str | None:
        """Returns why another program's work would disturb times on this GPU, or why it is slow; None if it is free."""
        if self._handle is None:
            return None
        try:
            used = int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except Exception:  # some drivers do not tell it
            used = 0
        return f"other work keeps it busy ({used}% of the time)" if used > BUSY_PERCENT else self.disturbance()

    def others(self) -> list[int]:
        """Returns the process ids of other programs that compute on this GPU."""
        if self._handle is None:
            return []
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except Exception:
            return []
        return sorted({int(process.pid) for process in running} - {os.getpid(), os.getppid()})

    def record(self) -> dict[str, Json]:
        if self.unavailable:
            return {"nvml": self.unavailable}
        clocks = sorted(self._clocks)
        ends: Json = {"min": clocks[0], "median": clocks[len(clocks) // 2], "max": clocks[-1]} if clocks else None
        limits: list[Json] = [*sorted(self._reasons)]
        return {"nvml": "ok", "sm_clock_mhz": ends, "limits_seen": limits, "other_processes": [*self.others()]}
