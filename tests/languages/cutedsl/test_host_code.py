"""The host code of a kernel, run on this CPU against a library that records what it asks CUDA for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilewright.compile.compile import Compiled, Unit, compile_all
from tilewright.hardware.architectures import default_board
from tilewright.languages.cutedsl import LANGUAGE
from tilewright.records import Built, Configuration, MachineCode
from tilewright.task.loading import load_task
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed: pip install 'tilewright[cutedsl]'")

from tests.languages.cutedsl import kernels

EXAMPLE = Path(__file__).parents[3] / "examples" / "cute_gemm.py"
SOURCE = Path(__file__).parent / "recording_runtime.c"
RUN = """
import ctypes
import gc
import sys
from pathlib import Path
from tilewright.languages.cutedsl.launching import HostCode

class Tensor:
    def __init__(self, address): self.address = address
    def data_ptr(self): return self.address

made, library, stream, times, *written = sys.argv[1:]
args = [Tensor(int(each[1:])) if each[0] == "@" else float(each) for each in written]
for _ in range(int(times)):
    launch = HostCode(Path(made).read_bytes(), [library]).bound(args)
    others = [ctypes.c_void_p(0xBAD) for _ in range(1000)]  # take memory that the launch does not hold
    launch(int(stream))
    del launch
    gc.collect()
"""


@dataclass(frozen=True)
class Recorder:
    """Runs host code in a process of its own, because a library stays loaded."""

    library: Path
    folder: Path

    def launches(self, built: Built, *args: str, parameters: int = 1) -> list[dict[str, Any]]:
        """Returns what each launch asks for. ``parameters``: how many of the kernel's parameters to record."""
        return [each for each in self.recorded(built, *args, parameters=parameters) if "grid" in each]

    def recorded(self, built: Built, *args: str, parameters: int = 1, times: int = 1) -> list[dict[str, Any]]:
        """Returns all that is recorded. ``times``: how often to load the host code, to launch, and to free both."""
        made, recorded = self.folder / "made", self.folder / "recorded"
        made.write_bytes(built.files["object"])
        recorded.write_text("")
        command = [sys.executable, "-c", RUN, str(made), str(self.library), "77", str(times), *args]
        env = {**os.environ, "RECORDED": str(recorded), "PARAMETERS": str(parameters)}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in recorded.read_text().splitlines()]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("library") / "librecording.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return made


@pytest.fixture
def recorder(library: Path, tmp_path: Path) -> Recorder:
    return Recorder(library, tmp_path)


def gemm(values: str, workload: str = "odd") -> Compiled:
    task = load_task(str(EXAMPLE))
    (compiled,) = compile_all(task, [Unit(task.workload(workload), task.space.parse(values), default_board("sm_90"))])
    return compiled


@pytest.mark.parametrize(
    ("values", "grid", "cluster", "products"),
    [
        ("", [24, 1, 1], [2, 1, 1], 4),  # 1000 × 520: 4 × 3 clusters of two tiles of 128 × 256
        ("CLUSTER_M=1,CLUSTER_N=2,SCHEDULE=pingpong,TILE_N=128", [24, 2, 1], [1, 2, 1], 8),
        ("CLUSTER_M=1,PERSISTENT=False,TILE_N=128", [40, 1, 1], [1, 1, 1], 4),
    ],
)
def test_the_launch_facts_are_what_the_host_code_asks_for(
    recorder: Recorder, values: str, grid: list[int], cluster: list[int], products: int
) -> None:
    compiled = gemm(values)
    built, code = compiled.built, compiled.code
    assert isinstance(built, Built) and isinstance(code, MachineCode), built
    (launch,) = recorder.launches(built, "@1048576", "@2097152", "@3145728", parameters=4)
    assert launch["parameters"][1:] == [1 << 20, 2 << 20, 3 << 20], "tensor maps start with the tensor's address"
    assert launch["block"] == [built.facts.threads, 1, 1] == [384, 1, 1]
    assert launch["shared"] == built.facts.shared_bytes == code.shared_bytes > 200_000
    assert (launch["cluster"], launch["grid"], launch["stream"]) == (cluster, grid, 77)
    assert built.facts.cluster == code.cluster == cluster[0] * cluster[1] * cluster[2]
    task = load_task(str(EXAMPLE))
    dims = compiled.unit.workload.dims
    given = task.launched(compiled.unit.configuration, dims, task.arrays(dims), default_board("sm_90"))
    assert launch["grid"] == [given.grid[0] * cluster[0], cluster[1], 1]
    assert (code.tensor_path, code.tensor_instructions, code.stack_bytes) == ("HGMMA", products, 0)
    assert any("MULTICAST" in kind for kind in code.copies) == (code.cluster > 1)
    assert {"STSM.128"} < set(code.copies) and any(kind.startswith("UTMASTG") for kind in code.copies)


def test_tensors_constants_and_numbers_are_passed(recorder: Recorder) -> None:
    tensors = tuple(ArraySpec(name, (1000,), "float32") for name in ("a", "b", "out"))
    cases = (
        (Launch(kernels.add, (8,), (*tensors, 2.0)), ("@4096", "@8192", "@12288", "2.0"), [8, 1, 1]),
        (Launch(kernels.fill, (1,), (tensors[0], 2.5)), ("@4096", "2.5"), [1, 1, 1]),
    )
    for launch, args, grid in cases:
        lowered = LANGUAGE.lower(launch, {}, Configuration.of({}), "sm_80")
        built = LANGUAGE.assemble(lowered, 60)  # type: ignore[arg-type]
        assert isinstance(built, Built), built
        pointers = [int(each[1:]) for each in args if each[0] == "@"]
        (asked,) = recorder.launches(built, *args, parameters=len(pointers))
        assert (asked["parameters"], asked["grid"], asked["shared"]) == (pointers, grid, 0)


def test_code_is_loaded_once_and_stays_because_a_graph_may_outlive_its_launch(recorder: Recorder) -> None:
    launch = Launch(kernels.fill, (1,), (ArraySpec("out", (1000,), "float32"), 2.5))
    built = LANGUAGE.assemble(LANGUAGE.lower(launch, {}, Configuration.of({}), "sm_80"), 60)  # type: ignore[arg-type]
    assert isinstance(built, Built), built
    first, *others = recorder.recorded(built, "@4096", "2.5", times=2)
    assert first == {"library": "loaded"}
    assert [each.get("grid") for each in others] == [[1, 1, 1], [1, 1, 1]], others
