"""Loads the library of the CUDA driver. This module imports little, because commands use it before other imports."""

import ctypes
from functools import cache


@cache
def cuda_driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def has_driver() -> bool:
    """Tells whether the driver is installed. This is faster than `gpu.detect`, which initialises the driver (0.2 s)."""
    return cuda_driver() is not None
