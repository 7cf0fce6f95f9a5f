"""A task file of a captured launch, for code that nobody wrote a task for."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime import captured_kernels as kernels

from tilewright import hardware
from tilewright.compile import Unit, compile_all
from tilewright.errors import RequestError, TaskError
from tilewright.loading import load_task
from tilewright.optimizing.run import Options, optimize
from tilewright.records import MachineCode
from tilewright.runtime.capturing import draft as captured_draft
from tilewright.runtime.capturing.described import described
from tilewright.runtime.capturing.facts import Factor, Stored, facts, grid_forms, stored
from tilewright.runtime.capturing.record import Recorded
from tilewright.runtime.capturing.task_file import task_text
from tilewright.task import ArraySpec, Task
from tilewright.tuning import tune
from tilewright.verification.checking import check
from tilewright.verification.interpreted import InterpreterEngine
from tilewright.verify import reference_outputs

torch = pytest.importorskip("torch")
BOARD = hardware.default_board("sm_90")


def task_of(folder: Path, kernel: Any, grid: tuple[int, ...], *args: Any) -> Task:
    text = task_text(Recorded(described(kernel, grid, args), 1), folder)
    (folder / "captured.py").write_text(text)
    return load_task(str(folder / "captured.py"))


def bf16(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> Task:
    arrays = (bf16(96, 64), bf16(80, 64).t(), bf16(96, 80))
    return task_of(tmp_path_factory.mktemp("task"), kernels.matmul, (3, 5), *arrays, 32, 16, 32)


def test_grid_tiles_and_layout_are_found(matmul: Task) -> None:
    """A-14: the shipped configuration is the captured one; the grid follows from the tiles."""
    assert dict(matmul.space.shipped) == {
        "TILE_M": 32, "TILE_N": 16, "TILE_K": 32, "num_ctas": None, "occupancy": None, "num_worker_warps": None,
    }  # fmt: skip
    workload = matmul.selected(None)[0]
    launch = matmul.launched(
        matmul.space.shipped.replace(TILE_M=16), workload.dims, matmul.arrays(workload.dims), BOARD
    )
    assert launch.grid == (6, 5)
    assert (launch.args[1].shape, launch.args[1].strides) == ((64, 80), (1, 64))
    assert launch.args[3:] == (16, 16, 32)
    assert sorted(dict(workload.dims).values()) == [64, 80, 96]


def test_work_and_independence_are_found_by_trying(matmul: Task) -> None:
    dims = matmul.selected(None)[0].dims
    assert matmul.work(dims) == pytest.approx(2 * 96 * 80 * 64)
    assert {dims[name] for name in matmul.independent} == {96, 80}


def test_the_reference_is_the_kernel_without_its_rounding(matmul: Task) -> None:
    rng, dims = np.random.default_rng(0), matmul.selected(None)[0].dims
    a, b = rng.normal(size=(96, 64)), rng.normal(size=(80, 64))
    (c,) = reference_outputs(matmul, dims, {"a": a, "b": b}).values()
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-12, atol=1e-12)


def test_it_compiles(matmul: Task) -> None:
    (compiled,) = compile_all(
        matmul, [Unit(matmul.selected(None)[0], matmul.space.shipped, BOARD)], seconds=60
    )
    assert isinstance(compiled.code, MachineCode)


def test_the_captured_kernel_is_correct_and_another_is_not(matmul: Task) -> None:
    """What "correct" means here: as captured. A version that computes something else is told."""
    assert check(matmul, InterpreterEngine(matmul, BOARD), quick=True).verdict == "correct"
    file = matmul.file
    assert file is not None
    other = Path(kernels.__file__).with_suffix(".py")
    changed = file.parent / "changed.py"
    changed.write_text(other.read_text().replace("total.astype", "(total * 1.05).astype"))
    wrong = load_task(str(file), {str(other): str(changed)})
    assert check(wrong, InterpreterEngine(wrong, BOARD), quick=True).verdict == "incorrect"


def test_in_place_is_declared(tmp_path: Path) -> None:
    """A-41."""
    x = torch.zeros(256)
    task = task_of(tmp_path, kernels.scale, (8,), x, x, 32, 0.5)
    assert task.outputs["y"].in_place_of == "x"
    verdict = check(task, InterpreterEngine(task, BOARD))
    assert verdict.verdict == "correct", verdict.reason
    assert "in place" in {one.case.run for one in verdict.results}


def test_a_tile_that_must_hold_an_axis_stays(tmp_path: Path) -> None:
    """Half of it would leave the rest of the axis out."""
    task = task_of(tmp_path, kernels.centred, (12,), torch.zeros(12, 100), torch.zeros(12, 100), 128)
    assert not task.space.constants
    assert 12 in {task.selected(None)[0].dims[name] for name in task.independent}


def test_a_grid_without_a_rule_stays_and_the_file_says_so(tmp_path: Path) -> None:
    task = task_of(tmp_path, kernels.scale, (5,), torch.zeros(40), torch.zeros(40), 16, 0.5)
    assert not task.space.constants
    assert task.file is not None
    assert "no rule of extents and tiles (TILE) gives the grid of (5,)" in task.file.read_text().replace(
        "No", "no"
    )
    workload = task.selected(None)[0]
    assert task.launched(task.space.shipped, workload.dims, task.arrays(workload.dims), BOARD).grid == (5,)


def test_indices_stay_indices(tmp_path: Path) -> None:
    table = torch.tensor([5, 0, 3, 1] * 16, dtype=torch.int32)
    task = task_of(tmp_path, kernels.gathered, (4,), torch.zeros(8), table, torch.zeros(64), 16)
    spread = task.inputs["table"].distribution
    assert (spread.kind, spread.a, spread.b) == ("integers", 0, 6)


@pytest.mark.parametrize(
    ("kernel", "grid", "args", "why"),
    [
        (kernels.doubled, (8,), (torch.zeros(64), 8), "reads and writes 'x' through one argument"),
        (kernels.scale, (4,), (torch.zeros(64)[:40], torch.zeros(64)[:40], 8, 1.0), None),
        (kernels.nested(), (8,), (torch.zeros(64), 8), "defined inside nested"),
    ],
)
def test_what_cannot_become_a_task_says_why(
    tmp_path: Path, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], why: str | None
) -> None:
    if why is None:  # blocks that leave a part of the output unwritten
        why = "does not pass on small shapes"
    with pytest.raises(RequestError, match=why):
        task_of(tmp_path, kernel, grid, *args)
    assert not list(tmp_path.iterdir()), "drafts are removed"


def test_a_table_that_steers_is_refused(tmp_path: Path) -> None:
    table = torch.tensor([0, 3, 7, 7, 9, 12, 15, 15] * 2, dtype=torch.int32).sort().values
    with pytest.raises(RequestError, match="is a table whose numbers rise"):
        task_of(tmp_path, kernels.gathered, (1,), torch.zeros(16), table, torch.zeros(16), 16)


def test_overlapping_outputs_are_refused(tmp_path: Path) -> None:
    base = torch.zeros(100)
    with pytest.raises(RequestError, match="overlaps 'x' without being the same array"):
        task_of(tmp_path, kernels.scale, (8,), base[:64], base[8:72], 8, 1.0)


PROGRAM = """
import torch
import cuda.tile as ct

TWICE = 2.0

@ct.kernel
def twice(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * TWICE)

raise SystemExit("runs")
"""


def launched_by_program(file: Path) -> Any:
    file.write_text(PROGRAM)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with pytest.raises(SystemExit):
        exec(compile(PROGRAM, str(file), "exec"), namespace)
    return namespace["twice"]


def test_a_kernel_of_a_program_is_copied(tmp_path: Path) -> None:
    """Loading the program would run it."""
    kernel = launched_by_program(tmp_path / "program.py")
    task = task_of(tmp_path, kernel, (8,), torch.zeros(64), torch.zeros(64), 8)
    assert task.edit == ("captured.py",)
    assert check(task, InterpreterEngine(task, BOARD), quick=True).verdict == "correct"


def test_a_kernel_that_changed_since_is_no_reference(tmp_path: Path) -> None:
    """The reference would be another than what was captured (X-21)."""
    kernel = launched_by_program(tmp_path / "program.py")
    task = task_of(tmp_path, kernel, (8,), torch.zeros(64), torch.zeros(64), 8)
    (tmp_path / "program.py").write_text(PROGRAM.replace("TWICE = 2.0", "TWICE = 3.0"))
    assert task.file is not None
    again = load_task(str(task.file))
    with pytest.raises(TaskError, match="has changed since it was captured"):
        reference_outputs(again, again.selected(None)[0].dims, {"x": np.zeros(64)})


# What it is for ---------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task with few configurations, in a repository of its own."""
    monkeypatch.setattr(captured_draft, "HINTS", {})
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    kernel = launched_by_program(tmp_path / "program.py")
    task_of(tmp_path, kernel, (8,), torch.zeros(1024), torch.zeros(1024), 128)
    for words in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"),
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    return tmp_path / "captured.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU: predicted")
def test_tune_without_a_gpu(small: Path) -> None:
    (found,) = tune(load_task(str(small)), arch="sm_90", seed=0).workloads
    assert found.best is not None and found.best.configuration["TILE"] in (64, 128, 256)


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU: predicted")
def test_optimize_without_a_gpu(small: Path) -> None:
    """The baseline is the captured launch; one change is tried and judged against it."""
    found = optimize(str(small), arch="sm_90", options=Options(iterations=1), seed=0)
    assert [one.correctness for one in found.iterations][:1] == ["PASS"]
    assert len(found.iterations) == 2


# Facts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "how"),
    [
        ((4, 6), None, Stored((4, 6))),
        ((6, 4), (1, 6), Stored((4, 6), (1, 0))),
        ((2, 3, 4), (4, 8, 1), Stored((3, 2, 4), (1, 0, 2))),
        ((4, 6), (8, 1), Stored((30,), flat=True)),
        ((4, 6), (0, 1), Stored((6,), flat=True)),
    ],
)
def test_how_an_array_is_declared(shape: tuple[int, ...], strides: Any, how: Stored) -> None:
    assert stored(ArraySpec("x", shape, "float32", strides)) == how


def test_forms_of_a_grid_give_the_grid() -> None:
    args = (bf16(96, 64), bf16(64, 80), bf16(96, 80), 32, 16, 32)
    launch = described(kernels.matmul, (3, 5), args)
    forms = grid_forms(facts(launch))
    sizes = launch.constants
    assert forms[0] == ((Factor(96, "TILE_M"),), (Factor(80, "TILE_N"),))
    for form in forms:
        blocks = [
            math.prod(-(-f.extent // sizes[f.tile]) if f.tile else f.extent for f in axis)  # type: ignore[operator]
            for axis in form
        ]
        assert blocks == [3, 5]
