"""Compiles the launches of `test_ptx` with `triton.compile`, in a process of its own with an empty cache.

The signature, constants and attributes are those that a launch's binder finds: `kernel.warmup` with a driver that has
no GPU, which is Triton's own path to `triton.compile`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def digest(cubin: bytes) -> str:
    return hashlib.sha256(cubin).hexdigest()


def hashes(cache: Path) -> dict[str, str]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", "tests.languages.triton.triton_compile"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


class Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


DTYPES = {name: Dtype(name) for name in ("bfloat16", "float32", "int32")}


class Tensor:
    """What the binder asks of a tensor."""

    def __init__(self, dtype: str) -> None:
        self.dtype = DTYPES[dtype]

    def data_ptr(self) -> int:
        return 256

    def ptr_range(self) -> int:
        return 1 << 20


class Driver:
    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)


def main() -> None:
    from tests.languages.triton.test_ptx import ARCHITECTURES, LAUNCHES
    from triton.runtime.driver import driver

    from tilewright.task.tensors import ArraySpec

    found = {}
    for arch in ARCHITECTURES:
        driver.set_active(Driver(int(arch.removeprefix("sm_"))))
        for name, (launch, options) in LAUNCHES.items():
            launch.kernel.device_caches.clear()
            args = [Tensor(arg.dtype) if isinstance(arg, ArraySpec) else arg for arg in launch.args]
            kernel = launch.kernel.warmup(*args, grid=launch.grid, **options)
            found[f"{name} {arch}"] = digest(kernel.asm["cubin"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
