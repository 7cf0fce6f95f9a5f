"""A driver that numbers the libraries that it loads, and records launches. Its types are those of cuda-bindings."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as real


class RecordingDriver:
    CUfunction = CUkernel = CUstream = int

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.count = 0
        self.calls: list[str] = []
        """Names of the functions that were called, but for launches."""
        self.launches: list[tuple[Any, tuple[int, ...], int, int]] = []
        """The kernel, grid and stream of each launch, and the address of its parameters (`word`)."""
        self.filled: list[tuple[int, int, int, int]] = []
        """Address, byte, size and stream of each memory that was filled."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def cuLibraryLoadData(self, *arguments: object) -> tuple[int, int]:
        self.count += 1
        self.loaded.append(self.count)
        return 0, self.count

    def cuLibraryGetKernel(self, library: int, symbol: bytes) -> tuple[int, int]:
        return 0, library

    def cuLibraryUnload(self, library: int) -> tuple[int]:
        self.loaded.remove(library)
        return (0,)

    def cuInit(self, flags: int) -> tuple[int]:
        self.calls.append("cuInit")
        return (0,)

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        self.calls.append("cuCtxGetCurrent")
        return 0, 1

    def cuCtxGetDevice(self) -> tuple[int, int]:
        self.calls.append("cuCtxGetDevice")
        return 0, 0

    def cuKernelSetAttribute(self, *arguments: object) -> tuple[int]:
        return (0,)

    def cuKernelSetCacheConfig(self, *arguments: object) -> tuple[int]:
        return (0,)

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        self.count += 1
        return 0, self.count << 20

    def cuMemFree(self, address: int) -> tuple[int]:
        return (0,)

    def cuMemsetD8Async(self, address: int, byte: int, nbytes: int, stream: int) -> tuple[int]:
        self.filled.append((address, byte, nbytes, stream))
        return (0,)

    def cuLaunchKernel(self, kernel: int, *rest: Any) -> tuple[int]:
        self.launches.append((kernel, rest[:3], int(rest[7]), rest[8]))
        return (0,)

    def cuLaunchKernelEx(self, config: Any, kernel: int, parameters: int, extra: int) -> tuple[int]:
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        self.launches.append((kernel, grid, int(config.hStream), parameters))
        return (0,)


def word(parameters: int, place: int) -> int:
    """The 64 bits of a launch's parameter."""
    address = (ctypes.c_void_p * (place + 1)).from_address(parameters)[place]
    return ctypes.c_uint64.from_address(address or 0).value
