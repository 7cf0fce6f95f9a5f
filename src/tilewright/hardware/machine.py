"""Chooses the GPU model to tune for, and records this machine with the versions of its packages."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from tilewright.errors import MachineError, NoGpu, RequestError
from tilewright.hardware.architectures import DEFAULT_ARCH, Board, default_board
from tilewright.hardware.gpu import Gpu, detect
from tilewright.records import Machine

DRIVER = 580
"""The oldest branch of the driver that runs machine code of tileiras 13. It comes with CUDA 13.0."""
VERSIONED = ("tilewright", "cuda-tile", "nvidia-cuda-tileiras", "triton", "nvidia-cutlass-dsl", "torch", "numpy")
"""The packages whose versions are recorded with a result."""

_ARCH, _VERSION = re.compile(r"sm_\d{2,3}"), re.compile(r"\d{1,6}(\.\d{1,6}){0,3}")


@dataclass(frozen=True)
class Target:
    """The GPU model to tune for."""

    board: Board
    gpu: Gpu | None
    """This machine's GPU if it is of the type ``board``. None means that nothing is measured."""
    note: str | None = None

    @property
    def measured(self) -> bool:
        return self.gpu is not None


@dataclass(frozen=True)
class OtherMachine:
    """The machine on which candidates run, if it is another machine. ``host``: as in `records.Machine`."""

    name: str
    gpu: Gpu | None
    driver: str | None
    host: str

    def mistake(self) -> str | None:
        """Returns why no machine is like this one; None if one can be. One that was broken into may say anything."""
        if self.driver is not None and not _VERSION.fullmatch(self.driver):
            return f"a driver of version {self.driver[:40]!r}"
        gpu = self.gpu
        if gpu is None:
            return None
        if not _ARCH.fullmatch(gpu.arch) or not _VERSION.fullmatch(gpu.cuda_driver):
            return f"a GPU of architecture {gpu.arch[:40]!r} for CUDA {gpu.cuda_driver[:40]!r}"
        return None if gpu.sms > 0 and gpu.memory_bytes > 0 else "a GPU without cores or memory"

    def the_gpu(self) -> Gpu:
        """Returns its GPU. Raises NoGpu if it has none, and MachineError if its driver is too old."""
        if self.gpu is None:
            fix = "fix: name a machine with a GPU, or leave out --on, which predicts without one"
            raise NoGpu(f"{self.name} has no GPU to measure on; {fix}")
        if not runs_cuda_13(self.driver, self.gpu):
            has = f"driver {self.driver}" if self.driver else f"a driver for CUDA {self.gpu.cuda_driver}"
            raise MachineError(
                f"{self.name} has {has}, which does not run machine code of CUDA 13; fix: install driver r{DRIVER} or "
                "newer there"
            )
        return self.gpu


def target_of(arch: str | None, gpu: Gpu | None) -> Target:
    """Returns the target for ``arch``.

    The default is this machine's GPU. Without a GPU, the default is the GPU model for `DEFAULT_ARCH`.
    """
    if gpu is not None and arch in (None, gpu.arch):
        return Target(gpu.board, gpu)
    board = default_board(arch or DEFAULT_ARCH)
    if gpu is not None:
        return Target(board, None, f"this machine's GPU is {gpu.arch}; {arch} is predicted, not measured")
    if arch is None:
        return Target(board, None, f"no GPU here: tuning for {DEFAULT_ARCH} ({board.name}); choose with --arch")
    return Target(board, None)


def target_at(arch: str | None, place: OtherMachine) -> Target:
    """Returns the target for the GPU of another machine. Raises RequestError if it is not of ``arch``."""
    gpu = place.the_gpu()
    if arch not in (None, gpu.arch):
        raise RequestError(
            f"the GPU of {place.name} is {gpu.arch}, not {arch}; fix: leave out --arch, or leave out --on"
        )
    return Target(gpu.board, gpu)


def machine_of(target: Target, place: OtherMachine | None = None) -> Machine:
    """Returns the record of the machine: its GPU, driver, CPU cores and package versions.

    place: where candidates run, if that is another machine. Its packages have the versions of this machine's.
    """
    driver = place.driver if place else driver_version() if target.gpu else None
    return Machine(
        arch=target.board.arch,
        gpu=target.gpu.name if target.gpu else None,
        driver=driver,
        host=place.host if place else host(),
        versions={name: installed_version(name) or "not installed" for name in VERSIONED},
    )


def runs_cuda_13(version: str | None, gpu: Gpu) -> bool:
    """Returns whether a driver is new enough. ``version``: of the driver; None: its CUDA version counts."""
    if version:
        return int(version.split(".")[0]) >= DRIVER
    return tuple(map(int, gpu.cuda_driver.split("."))) >= (13, 0)


def this_machine() -> OtherMachine:
    """Returns this machine as another one sees it."""
    gpu = detect()
    return OtherMachine(platform.node(), gpu, driver_version() if gpu else None, host())


def host() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def installed_version(package: str) -> str | None:
    """Returns the version of a pip package without importing the package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def driver_version() -> str | None:
    """Returns the version of the GPU driver, e.g. ``580.159.03``; None if neither NVML nor /proc states it."""
    with suppress(Exception):  # NVML is not installed, or there is no driver
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), None)
