"""What else happened on the GPU while it was timed: clocks, throttling, other processes.

NVML is optional. Where it is missing the record says so; nothing is guessed.
"""

from __future__ import annotations

import os
from typing import Any

from tilewright.records import Json

DISTURBING = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake")
"""Reasons that make a round worthless. The software power cap is not among them: a kernel that draws full power runs
under it in production too."""

_REASONS = {  # nvml.h, nvmlClocksEventReason*
    "applications_clocks": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40, "hw_power_brake": 0x80,
}  # fmt: skip


class Monitor:
    """Reads NVML while a race runs. ``disturbance()`` is called once a round and takes microseconds."""

    def __init__(self, device: int = 0) -> None:
        self._clocks: list[int] = []
        self._reasons: set[str] = set()
        self._handle: Any = None
        self.unavailable: str | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        except ImportError:
            self.unavailable = "NVML is not installed (pip install nvidia-ml-py)"
        except Exception as error:  # NVML's own error type exists only where NVML does
            self.unavailable = f"NVML does not answer: {error}"

    def disturbance(self) -> str | None:
        """The reason to throw the round away, or None; remembers the clock either way."""
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

    def others(self) -> list[int]:
        """Process ids of other programs computing on this GPU."""
        if self._handle is None:
            return []
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except Exception:
            return []
        return sorted(int(one.pid) for one in running if int(one.pid) not in (os.getpid(), os.getppid()))

    def record(self) -> dict[str, Json]:
        if self.unavailable:
            return {"nvml": self.unavailable}
        clocks = sorted(self._clocks)
        ends: Json = {"min": clocks[0], "median": clocks[len(clocks) // 2], "max": clocks[-1]} if clocks else None
        return {
            "nvml": "ok",
            "sm_clock_mhz": ends,
            "limits_seen": [*sorted(self._reasons)],
            "other_processes": [*self.others()],
        }
