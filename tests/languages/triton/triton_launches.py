"""Launches `launched_kernels.CASES` on the driver that records (`recording_driver.c`), in a process of its own.

``-m tests.languages.triton.triton_launches theirs`` uses Triton's own launcher, ``ours`` that of Tilewright's worker.
Prints one line of JSON: name of a case → what was launched, what was said to the driver before, and the sizes of the
scratch memory that was asked for.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SCRATCH = 1 << 44
STREAM = 77


def built_driver(folder: Path) -> Path:
    """Compiles the driver that records. Raises FileNotFoundError without a C compiler."""
    import triton

    include = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "include"
    made, source = folder / "libcuda.so.1", Path(__file__).with_name("recording_driver.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", f"-I{include}", str(source), "-o", str(made)], check=True)
    return made


def recorded(folder: Path, whose: str, version: int, cache: Path | None = None) -> dict[str, Any]:
    """``version``: of the driver. ``cache``: of Triton; by default an empty one."""
    folder.mkdir(exist_ok=True)
    built_driver(folder)
    environment = {
        **os.environ, "RECORDED": str(folder / "launches"), "RECORDED_VERSION": str(version),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder), "TRITON_CACHE_DIR": str(cache or folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.languages.triton.triton_launches", whose]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class Log:
    """What the driver recorded."""

    def __init__(self) -> None:
        self.library, self.file = ctypes.CDLL("libcuda.so.1"), Path(os.environ["RECORDED"])

    def of(self, cubin: bytes, launch: Callable[[], object]) -> dict[str, Any]:
        from tilewright.machine_code import elf

        sizes = elf.parse(cubin).parameters
        self.library.recorded_sizes(len(sizes), (ctypes.c_uint * len(sizes))(*sizes))
        before = len(self._lines())
        launch()
        *settings, launched = map(json.loads, self._lines()[before:])
        return {"sizes": sizes, "settings": settings, **launched}

    def _lines(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []


class Memory:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def theirs() -> dict[str, Any]:
    from tests.languages.triton.launched_kernels import CASES, address_of
    from triton import set_allocator
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher, CudaUtils
    from triton.runtime.driver import driver
    from triton.tools.tensor_descriptor import TensorDescriptor

    from tilewright.languages.triton.private import _FakeTensor
    from tilewright.task.tensors import ArraySpec, Descriptor

    class Driver:
        """The real launcher, for an architecture of our choice. Each architecture is a device of its own."""

        utils, launcher_cls, arch = CudaUtils(), CudaLauncher, 90

        def get_current_device(self) -> int:
            return self.arch

        def get_current_stream(self, device: int) -> int:
            return STREAM

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", self.arch, 32)

    class Tensor(_FakeTensor):
        def data_ptr(self) -> int:
            return address_of(self.array.name)

    def real(argument: Any) -> Any:
        if isinstance(argument, ArraySpec):
            return Tensor(argument)
        if isinstance(argument, Descriptor):
            base, array = real(argument.base), argument.base
            return TensorDescriptor(
                base, list(array.shape), list(array.strides), argument.block_shape, argument.padding
            )
        return tuple(map(real, argument)) if isinstance(argument, tuple) else argument

    asked: list[int] = []

    def allocate(size: int, alignment: int, stream: int | None) -> Memory:
        asked.append(size)
        return Memory(SCRATCH)

    set_allocator(allocate)
    driver.set_active(Driver())
    log, found = Log(), {}
    for name, case in CASES.items():
        Driver.arch = case.arch
        asked.clear()
        kernel, arguments = case.launch.kernel, [real(argument) for argument in case.launch.args]
        cubin = kernel.warmup(*arguments, grid=case.launch.grid, **case.options).asm["cubin"]
        found[name] = log.of(cubin, lambda: kernel[case.launch.grid](*arguments, **case.options))  # noqa: B023
        found[name]["scratch"] = list(asked)
    return found


def ours() -> dict[str, Any]:
    from tests.languages.triton.launched_kernels import CASES, address_of

    from tilewright.launching import cuda
    from tilewright.launching.driver import ProgramLaunch

    asked: list[int] = []

    def allocated(size: int, owner: object) -> int:
        asked.append(size)
        return SCRATCH

    cuda.allocated = allocated  # there is no device
    log, found = Log(), {}
    for name, case in CASES.items():
        asked.clear()
        program, cubin = case.program()
        tensors: Any = {array: Memory(address_of(array)) for array in case.names()}
        found[name] = log.of(cubin, lambda: ProgramLaunch(program, tensors)(STREAM))  # noqa: B023
        found[name]["scratch"] = list(asked)
    return found


if __name__ == "__main__":
    print(json.dumps({"theirs": theirs, "ours": ours}[sys.argv[1]]()))
