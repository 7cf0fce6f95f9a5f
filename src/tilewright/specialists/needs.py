"""Returns whether this machine meets the needs of specialists, without importing a compiler or torch."""

from __future__ import annotations

import shutil

from tilewright.hardware.gpu import count, detect
from tilewright.hardware.machine import installed_version
from tilewright.specialists.base import Need


def need_of_package(package: str, fix: str = "") -> Need:
    """Returns the need for a pip package of any version."""
    version = installed_version(package)
    return Need(package, version is not None, version or fix or f"pip install {package}")


def need_of_gpu(at_least: int = 1) -> Need:
    """Returns the need for this number of GPUs, counted by the driver."""
    found, gpu = count(), detect()
    have = f"{found} × {gpu.name}" if gpu else "none here"
    return Need("a GPU" if at_least == 1 else f"{at_least} GPUs of one host", found >= at_least, have)


def need_of_program(program: str, fix: str) -> Need:
    """Returns the need for a program on PATH."""
    path = shutil.which(program)
    return Need(program, path is not None, path or fix)
