"""Launches a `Program` through the CUDA driver: a cubin, a grid and parameters, without Python code of a candidate.

A tile kernel is launched with one thread per block, as by cuda-tile. The driver reads the real number of threads, the
cluster and the shared memory from the cubin. This was observed with cuda-tile 1.7's own hook on `cuLaunchKernel`. A GPU
test compares both launches. Other kernels need `records.LaunchFacts` and are launched as Triton's launcher does it.
"""

from __future__ import annotations

import base64
import ctypes
import math
import struct
import weakref
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilewright.launching import cuda
from tilewright.launching.tensor_maps import encoded
from tilewright.records import LaunchFacts
from tilewright.task.tensors import DIVISOR, alignment_of
from tilewright.worker.messages import PackedNumber, Parameter, Pointer, Program, TensorMap

if TYPE_CHECKING:
    from cuda.bindings.driver import (
        CUfunction,
        CUlaunchAttribute,
        CUlaunchAttributeID,
        CUlaunchAttributeValue,
        CUlaunchConfig,
        CUlibrary,
    )

STATIC_SHARED_BYTES = 48 << 10
"""A kernel with more shared memory needs a special permission (CUDA Programming Guide, shared memory)."""
PORTABLE_CLUSTER = 8
"""A kernel with larger clusters needs a special permission (CUDA Programming Guide, thread block clusters)."""
LOADED = 64
"""The number of cubins that stay loaded."""


class Addressed(Protocol):
    """A tensor on the device, of torch or of `host_backend`."""

    def data_ptr(self) -> int:
        """Returns the address of the first element."""


class ProgramLaunch:
    """Launches ``program`` on ``tensors`` when this object is called with the handle of a CUDA stream.

    own_code: loads the cubin once more, at another address, and unloads it when this object is deleted.
    aligned: the code was compiled for tensors at multiples of `DIVISOR`.
    """

    def __init__(
        self, program: Program, tensors: Mapping[str, Addressed], own_code: bool = False, *, aligned: bool = True
    ) -> None:
        if own_code:
            library, self._kernel = _loaded(program.cubin, program.symbol)
            weakref.finalize(self, cuda.driver().cuLibraryUnload, library).atexit = False
        else:
            self._kernel = _kernel(program.cubin, program.symbol)
        self._aligned = aligned
        self._grid, self._facts = (*program.grid, 1, 1)[:3], program.facts
        self._kept: list[object] = []  # the memory to which the parameters point
        self._zeros: list[tuple[int, int]] = []  # address and size of memory that each launch finds zeroed
        data = [self._bytes_of(parameter, tensors) for parameter in program.parameters]
        data += [struct.pack("<Q", self._scratch(*each)) for each in program.facts.scratch]
        if program.facts.threads is not None:
            self._prepare()
        values = [ctypes.create_string_buffer(each.ljust(8, b"\0"), max(8, len(each))) for each in data]
        self._kept += values
        self._parameters = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))

    def __call__(self, stream: int | None) -> None:
        driver = cuda.driver()
        for place, size in self._zeros:
            _checked(driver.cuMemsetD8Async(place, 0, size, driver.CUstream(stream)))
        address = ctypes.addressof(self._parameters)
        if self._facts.threads is not None:
            _checked(driver.cuLaunchKernelEx(self._configured(stream), self._kernel, address, 0))
            return
        _checked(driver.cuLaunchKernel(self._kernel, *self._grid, 1, 1, 1, 0, driver.CUstream(stream), address, 0))

    def _prepare(self) -> None:
        """Sets the attributes of the kernel that permit large shared memory and large clusters."""
        driver, allowed = cuda.driver(), cuda.driver().CUfunction_attribute
        device, kernel = _checked(driver.cuCtxGetDevice()), driver.CUkernel(int(self._kernel))
        wanted = {}
        if self._facts.shared_bytes > STATIC_SHARED_BYTES:
            _checked(driver.cuKernelSetCacheConfig(kernel, driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED, device))
            wanted[allowed.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = self._facts.shared_bytes
        if (self._facts.cluster or 1) > PORTABLE_CLUSTER:
            wanted[allowed.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        for attribute, value in wanted.items():
            _checked(driver.cuKernelSetAttribute(attribute, value, kernel, device))

    def _configured(self, stream: int | None) -> CUlaunchConfig:
        driver, facts, cluster = cuda.driver(), self._facts, self._facts.cluster or 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self._grid[0] * cluster, *self._grid[1:]
        config.blockDimX, config.blockDimY, config.blockDimZ = facts.threads, 1, 1
        config.sharedMemBytes, config.hStream = facts.shared_bytes, driver.CUstream(stream)
        config.attrs = attributes = _attributes(driver, facts, cluster)
        config.numAttrs = len(attributes)
        return config

    def _scratch(self, size: int, alignment: int) -> int:
        """Returns the address of scratch memory for all CTAs; 0 if none is needed."""
        if not size:
            return 0
        ctas = math.prod(self._grid) * (self._facts.cluster or 1)
        return -(-cuda.allocated(ctas * size + alignment, self) // alignment) * alignment

    def _bytes_of(self, parameter: Parameter, tensors: Mapping[str, Addressed]) -> bytes:
        if isinstance(parameter, PackedNumber):
            return bytes.fromhex(parameter.data)
        if isinstance(parameter, TensorMap):
            return encoded(parameter, self._address(parameter.tensor, tensors))
        if isinstance(parameter, Pointer) and parameter.zeros:
            self._zeros.append((cuda.allocated(parameter.zeros, self), parameter.zeros))
            return struct.pack("<Q", self._zeros[-1][0])
        if isinstance(parameter, Pointer):
            return struct.pack("<Q", self._address(parameter.tensor, tensors))
        rows = [
            [self._address(value.tensor, tensors) if isinstance(value, Pointer) else value for value in row]
            for row in parameter.rows
        ]
        table = np.array(rows, np.int64)
        address = cuda.allocated(table.nbytes, self)
        _checked(cuda.driver().cuMemcpyHtoD(address, table.ctypes.data, table.nbytes))
        _checked(cuda.driver().cuCtxSynchronize())  # the launch may be on a stream that does not wait for the copy
        return struct.pack("<Q", address)

    def _address(self, name: str, tensors: Mapping[str, Addressed]) -> int:
        if name not in tensors:
            raise ValueError(f"the program asks for a tensor '{name}'; known: {', '.join(tensors)}")
        address = int(tensors[name].data_ptr())
        if self._aligned and alignment_of(address):
            raise ValueError(f"tensor '{name}' is not aligned to {DIVISOR} bytes, as the program expects")
        return address


def _attributes(driver: ModuleType, facts: LaunchFacts, cluster: int) -> list[CUlaunchAttribute]:
    """Returns the attributes that Triton's launcher sets for a launch, in the same order."""
    known, found = driver.CUlaunchAttributeID, list["CUlaunchAttribute"]()

    def attribute(which: CUlaunchAttributeID) -> CUlaunchAttributeValue:
        found.append(driver.CUlaunchAttribute())
        found[-1].id = which
        return found[-1].value

    if facts.overlaps:
        serial = known.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute(serial).programmaticStreamSerializationAllowed = 1
    if facts.cooperative:
        attribute(known.CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1
    if cluster > 1:
        shape = attribute(known.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim
        shape.x, shape.y, shape.z = cluster, 1, 1
        spread = driver.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        policy = attribute(known.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
        policy.clusterSchedulingPolicyPreference = spread
    return found


@lru_cache(maxsize=LOADED)
def _kernel(cubin: str, symbol: str) -> CUfunction:
    return _loaded(cubin, symbol)[1]


def _loaded(cubin: str, symbol: str) -> tuple[CUlibrary, CUfunction]:
    """Loads the cubin. Returns its library and its kernel."""
    driver = cuda.driver()
    library = _checked(driver.cuLibraryLoadData(base64.b64decode(cubin), [], [], 0, [], [], 0))
    return library, driver.CUfunction(int(_checked(driver.cuLibraryGetKernel(library, symbol.encode()))))


def _checked(answer: tuple[Any, ...]) -> Any:
    return cuda.checked(answer, "the driver refuses the launch")
