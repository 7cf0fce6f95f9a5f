"""Launches a `Program` through the CUDA driver: a cubin, a grid and parameters, without Python code of a candidate.

A tile kernel is launched as cuda-tile does it: one thread per block, because the driver takes the threads, the cluster
and the shared memory from the cubin. This was seen with cuda-tile 1.7's own hook on `cuLaunchKernel`. A GPU test
compares both launches.
"""

from __future__ import annotations

import base64
import ctypes
import struct
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from tilewright.errors import MachineError
from tilewright.worker.messages import PackedNumber, Pointer, Program, Table

LOADED = 64
"""How many cubins stay loaded."""
ALIGNMENT = 16
"""Bytes. Code is compiled for tensors whose addresses are multiples of this number."""


class ProgramLaunch:
    """Launches ``program`` on ``tensors`` when this object is called with the handle of a CUDA stream. ``own_code``:
    loads the cubin once more, to another address, and unloads it when this object ends."""

    def __init__(self, program: Program, tensors: Mapping[str, torch.Tensor], own_code: bool = False) -> None:
        if own_code:
            library, self._kernel = _loaded(program.cubin, program.symbol)
            weakref.finalize(self, _driver().cuLibraryUnload, library).atexit = False
        else:
            self._kernel = _kernel(program.cubin, program.symbol)
        self._grid = (*program.grid, 1, 1)[:3]
        self._kept: list[object] = []  # what the parameters point to
        data = [self._bytes_of(parameter, tensors) for parameter in program.parameters]
        values = [ctypes.create_string_buffer(each.ljust(8, b"\0"), max(8, len(each))) for each in data]
        self._kept += values
        self._parameters = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))

    def __call__(self, stream: Any) -> None:
        driver = _driver()
        address = ctypes.addressof(self._parameters)
        _checked(driver.cuLaunchKernel(self._kernel, *self._grid, 1, 1, 1, 0, driver.CUstream(stream), address, 0))

    def _bytes_of(self, parameter: Pointer | PackedNumber | Table, tensors: Mapping[str, torch.Tensor]) -> bytes:
        if isinstance(parameter, PackedNumber):
            return bytes.fromhex(parameter.data)
        if isinstance(parameter, Pointer):
            return struct.pack("<Q", _address(parameter, tensors))
        rows = [[_address(v, tensors) if isinstance(v, Pointer) else v for v in row] for row in parameter.rows]
        table = torch.tensor(rows, dtype=torch.int64, device="cuda")
        self._kept.append(table)
        return struct.pack("<Q", table.data_ptr())


def _address(pointer: Pointer, tensors: Mapping[str, torch.Tensor]) -> int:
    if pointer.tensor not in tensors:
        raise ValueError(f"the program asks for a tensor '{pointer.tensor}'; known: {', '.join(tensors)}")
    address = int(tensors[pointer.tensor].data_ptr())
    if address % ALIGNMENT:
        raise ValueError(f"tensor '{pointer.tensor}' is not aligned to {ALIGNMENT} bytes, as the program expects")
    return address


@lru_cache(maxsize=LOADED)
def _kernel(cubin: str, symbol: str) -> Any:
    return _loaded(cubin, symbol)[1]


def _loaded(cubin: str, symbol: str) -> tuple[Any, Any]:
    """Loads the cubin. Returns its library and its kernel."""
    driver = _driver()
    library = _checked(driver.cuLibraryLoadData(base64.b64decode(cubin), [], [], 0, [], [], 0))
    return library, driver.CUfunction(int(_checked(driver.cuLibraryGetKernel(library, symbol.encode()))))


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError:
        raise MachineError("cuda-bindings is not installed; fix: pip install 'tilewright[gpu]'") from None
    return driver


def _checked(answer: tuple[Any, ...]) -> Any:
    """Returns the value of a driver call, without its status. Raises RuntimeError with the name of the error."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"the driver refuses the launch: {status.name}")
    return values[0] if values else None
