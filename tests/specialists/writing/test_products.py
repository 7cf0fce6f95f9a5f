"""Written products of matrices: which kernel a launch takes, what the candidates compile to, transposed operands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.compile.compile import Unit, compile_all, launch_of
from tilewright.hardware.architectures import default_board
from tilewright.machine_code.cubin import MachineCode
from tilewright.records import Workload
from tilewright.specialists.writing.writing import ReferenceSource, source_of, write_task
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.verify.check import check

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
LANGUAGES = ("cutile", "triton")


def gemm(tmp_path: Path, language: str, dtype: str = "bfloat16") -> Task:
    file = tmp_path / "written.py"
    file.write_text(write_task(source_of("gemm bias relu"), language, file.name, dtype=dtype).text)
    return load_task(str(file))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_few_candidates_and_enough_on_each_architecture(language: str, dtype: str, tmp_path: Path) -> None:
    task = gemm(tmp_path, language, dtype)
    assert task.space.only is not None and task.space.only[0] == task.space.shipped
    assert len(set(task.space.only)) == len(task.space.only) <= 24
    for arch in ARCHITECTURES:
        allowed = task.space.configurations(default_board(arch).sm, task.workload("large").dims)
        assert len(allowed) >= (5 if dtype == "float32" else 15)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_shipped_candidate_does_not_spill(language: str, dtype: str, tmp_path: Path) -> None:
    task = gemm(tmp_path, language, dtype)
    unit = Unit(task.workload("large"), task.space.shipped, default_board("sm_90"))
    (compiled,) = compile_all(task, [unit])
    code = compiled.code
    assert isinstance(code, MachineCode), code
    assert code.local_stores == 0
    if dtype == "bfloat16":
        assert code.tensor_path == "HGMMA" and "UTMASTG.2D" in code.copies, "whole tiles are loaded and stored by TMA"


@pytest.mark.parametrize(
    ("arch", "route", "n", "kernel"),
    [
        ("sm_90", "ptx", 520, "gemm_bias_relu_kernel"),
        ("sm_90", "ptx", 519, "gemm_bias_relu_kernel_by_pointers"),
        ("sm_90", "tileir", 520, "gemm_bias_relu_kernel"),
        ("sm_80", "ptx", 520, "gemm_bias_relu_kernel_by_pointers"),
        ("sm_80", "tileir", 520, "gemm_bias_relu_kernel"),
    ],
)
def test_descriptors_where_the_rows_and_the_architecture_allow_them(
    arch: str, route: str, n: int, kernel: str, tmp_path: Path
) -> None:
    task = gemm(tmp_path, "triton")
    workload = Workload("one", {"M": 256, "N": n, "K": 512})
    config = next(each for each in task.space.only or () if each["route"] == route)
    launch, _ = launch_of(task, Unit(workload, config, default_board(arch)))
    assert launch.kernel.__name__ == kernel


def test_blocks_loop_over_tiles(tmp_path: Path) -> None:
    task, board = gemm(tmp_path, "cutile"), default_board("sm_90")
    launch, _ = launch_of(task, Unit(task.workload("large"), task.space.shipped, board))
    assert launch.grid[0] == board.sms * task.space.shipped["BLOCKS_PER_SM"] < 4096 * 4096 // (128 * 256)


REFERENCES = {
    "both operands transposed": 'def f(a: "[K, M]", b: "[N, K]"):\n    return a.T @ b.T\n',
    "a column and a scaled matrix": (
        'def f(a: "[M, K]", b: "[K, N]", column: "[M, 1]", c: "[M, N]"):\n    return (a @ b) * column - 2 * c\n'
    ),
    "one row": 'def f(a: "float16[M, K]", b: "float16[K, N]"):\n    return np.tanh(a @ b)\n',
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("which", REFERENCES)
def test_an_epilogue_or_a_transpose_is_right(which: str, language: str, tmp_path: Path) -> None:
    source = ReferenceSource("import numpy as np\n\n" + REFERENCES[which], "f", "a test")
    dims = {"M": 1, "N": 40, "K": 64} if which == "one row" else {"M": 72, "N": 136, "K": 104}
    file = tmp_path / "written.py"
    file.write_text(write_task(source, language, file.name, dims=dims).text)
    for verdict in check(str(file), engine="interpreter", arch="sm_90", quick=True, workloads=("given", "odd")):
        assert verdict.verdict.startswith("correct"), verdict.reason
