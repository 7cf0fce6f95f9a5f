"""`tilewright new`, `tilewright example` and the shell's completion."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.cli import completion
from tilewright.cli import main as cli
from tilewright.compile.compile import Unit, compile_all
from tilewright.hardware.architectures import ARCHITECTURES, default_board
from tilewright.records import MachineCode
from tilewright.space.kinds import KINDS
from tilewright.task import examples
from tilewright.task.loading import load_task

ROOT = Path(__file__).parents[2]

OPS = """
from types import SimpleNamespace

import cuda.tile as ct

@ct.kernel
def attend(q, k, out, scale, TILE_M: ct.Constant[int], CAUSAL: ct.Constant[bool]):
    tile = ct.load(q, (ct.bid(0), 0), (TILE_M, 64)) * scale
    ct.store(out, (ct.bid(0), 0), tile)

@ct.kernel
def other(x):
    ct.store(x, (0,), ct.zeros((16,), ct.float32))

def configs():
    for size in (64, 128):
        yield SimpleNamespace(TILE_M=size, occupancy=2)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


# new ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_skeleton_of_every_kind_loads_and_compiles(kind: str) -> None:
    assert cli.main(("new", "mine.py", "--kind", kind, "--arch", "sm_90")) == 0
    task, board = load_task("mine.py"), default_board("sm_90")
    unit = Unit(task.selected(None)[0], task.space.shipped, board)
    assert isinstance(compile_all(task, [unit], seconds=60)[0].code, MachineCode)
    assert max(map(len, Path("mine.py").read_text().splitlines())) <= 120


@pytest.mark.parametrize("kind", ["elementwise", "norm", "matmul"])
def test_a_skeleton_is_correct_as_it_is(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(("new", "mine.py", "--kind", kind, "--arch", "sm_90"))
    quick = ("--quick", "--engine", "interpreter", "--arch", "sm_90", "--workload", "odd")
    assert cli.main(("check", "mine.py", *quick)) == 0, capsys.readouterr()


def test_a_skeleton_is_tuned_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cli.main(("new", "mine.py", "--kind", "in-place", "--arch", "sm_100"))
    capsys.readouterr()
    assert cli.main(("tune", "mine.py", "--workload", "odd", "--arch", "sm_100", "--no-store", "--json")) == 0
    (found,) = json.loads(capsys.readouterr().out)["workloads"]
    assert found["best"]["predicted_us"] > 0


def test_a_file_with_kernels_gets_a_task_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ops.py").write_text(OPS)
    assert cli.main(("new", "ops.py")) == 0
    assert "complete its lines that say FILL IN" in capsys.readouterr().err
    assert Path("ops.py").read_text() == OPS
    task = load_task("ops_task.py")
    assert (task.name, task.edit) == ("attend", (str(Path("ops.py").resolve()), "ops_task.py"))
    assert {name: tensor.shape for name, tensor in task.tensors.items()} == {
        "q": ("M", "N"), "k": ("N",), "out": ("M", "N"),
    }  # fmt: skip
    assert task.space.constants["TILE_M"] == (64, 128) and task.space.shipped["occupancy"] == 2
    text = Path("ops_task.py").read_text()
    for line in ("FILL IN: scale", "FILL IN: the values of CAUSAL", "FILL IN: shapes and dtypes"):
        assert line in text
    assert "ops_task.py exists" in error(capsys, "new", "ops.py")
    assert "gets a file" not in error(capsys, "new", "ops.py", "--kernel", "othr")  # no note about what is not written
    assert "NotImplementedError: FILL IN" in error(capsys, "check", "ops_task.py", "--engine", "interpreter")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("",), "name a FILE.py to write, or an operation"),
        (("mine.py", "--language", "triton"), "--language and --dtype are for a kernel that is written"),
        (("mine.py", "--dtype", "float99"), "--language and --dtype are for a kernel that is written"),
    ],
)
def test_what_a_new_task_does_not_use_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in error(capsys, "new", *arguments)
    assert not Path("mine.py").exists()


def test_one_of_several_kernels_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ops.py").write_text(OPS)
    assert "unknown kernel in ops.py 'othr'; did you mean 'other'? known: attend, other" in error(
        capsys, "new", "ops.py", "--kernel", "othr"
    )
    assert cli.main(("new", "ops.py", "--kernel", "other", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "ops_task.py"}
    assert "ops.other" in Path("ops_task.py").read_text()


def test_the_second_kernel_of_a_file_gets_a_file_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ops.py").write_text(OPS)
    cli.main(("new", "ops.py", "--kernel", "attend"))
    assert cli.main(("new", "ops.py", "--kernel", "other")) == 0
    err = capsys.readouterr().err
    assert "ops_task.py exists, so the task of other gets a file of its own" in err
    assert "wrote ops_other_task.py" in err and "ops.other" in Path("ops_other_task.py").read_text()
    assert "ops.attend" in Path("ops_task.py").read_text()
    assert "ops_other_task.py exists" in error(capsys, "new", "ops.py", "--kernel", "other")
    assert "ops_task.py exists" in error(capsys, "new", "ops.py")


def test_a_skeleton_names_the_template_of_its_space() -> None:
    cli.main(("new", "mine.py", "--kind", "cross-entropy", "--arch", "sm_90"))
    assert 'the template "elementwise"' in " ".join(Path("mine.py").read_text().split())


def test_mistakes_are_one_line_and_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.py").write_text("x = 1\n")
    assert "holds neither a task nor a cuTile or Triton kernel" in error(capsys, "new", "empty.py")
    Path("broken.py").write_text("def f(:\n")
    assert "broken.py:1" in error(capsys, "new", "broken.py")
    assert "unknown kind 'matml'; did you mean 'matmul'? known: " in error(capsys, "new", "mine.py", "--kind", "matml")
    assert "is not a Python file" in error(capsys, "new", "mine.txt")
    assert "cannot write" in error(capsys, "new", "nowhere/mine.py", "--arch", "sm_90")
    assert "there is no mine.py" in error(capsys, "new", "mine.py", "--kernel", "x")
    cli.main(("new", "mine.py", "--arch", "sm_90"))
    assert "holds a task; tune it" in error(capsys, "new", "mine.py")
    assert Path("empty.py").read_text() == "x = 1\n"


# For kernels in Triton ----------------------------------------------------------------------------

TRITON = """
import triton
import triton.language as tl


@triton.jit
def _shifted(row):
    return row - tl.max(row, 0)


@triton.jit
def softmax(out, x, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    start = x + row * stride
    values = tl.load(start + place, mask=place < columns, other=-float("inf"))
    powers = tl.exp(_shifted(values.to(tl.float32)))
    tl.store(out + row * stride + place, powers / tl.sum(powers, 0), mask=place < columns)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (256, 1024) for w in (4, 8)], key=["count"])
@triton.heuristics({"EVEN": lambda args: args["count"] % args["BLOCK"] == 0})
@triton.jit
def scaled(x, out, count, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) * factor)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < count) * factor, mask=at < count)
"""
BLANK = 'raise NotImplementedError("FILL IN: the outputs in float64 NumPy, computed from the inputs")'
ANSWERS = {
    "softmax": (
        ("grid = (-(-M // config.BLOCK),)", "grid = (M,)"),
        (BLANK, "import numpy as np; e = np.exp(x - x.max(1, keepdims=True)); return e / e.sum(1, keepdims=True)"),
        ('"BLOCK": (128, 64, 256)', '"BLOCK": (128,)'),
        ('{"M": 1024, "N": 1024}', '{"M": 64, "N": 100}'),
        ("    launch=launch,", "    launch=launch, serves=lambda N: N <= 128,"),
    ),
    "scaled": (
        ("N, 1.0,)", "N, 3.0,)"),
        (BLANK, "return 3 * x"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kernel", ANSWERS)
def test_a_triton_kernel_gets_a_task_that_passes_once_it_is_filled_in(
    kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    Path("ops.py").write_text(TRITON)
    assert cli.main(("new", "ops.py", "--kernel", kernel)) == 0
    text = Path("ops_task.py").read_text()
    assert 'hints={"route": ("ptx", "tileir")' in text and "FILL IN: " in text
    for blank, answer in ANSWERS[kernel]:
        assert blank in text
        text = text.replace(blank, answer)
    Path("ops_task.py").write_text(text)
    assert cli.main(("check", "ops_task.py", "--quick", "--engine", "interpreter", "--arch", "sm_90")) == 0, (
        capsys.readouterr()
    )


def test_what_a_triton_kernel_takes_is_read_from_its_text() -> None:
    Path("ops.py").write_text(TRITON)
    cli.main(("new", "ops.py"))
    text = Path("ops_task.py").read_text()
    assert "tw.Launch(ops.softmax, grid, (out, x, N, N,))  # FILL IN: stride, columns" in text, "not the helper"
    assert '"out": tw.Output(("M", "N"), ' in text and '"x": tw.Tensor(("M", "N"), ' in text
    cli.main(("new", "ops.py", "--kernel", "scaled"))
    text = Path("ops_scaled_task.py").read_text()
    assert 'constants={"BLOCK": (256, 1024)}' in text and '"num_warps": (4, 8)' in text, "those of triton.autotune"
    assert "EVEN" not in text, "triton.heuristics computes it"


def test_a_file_with_kernels_of_two_languages_is_asked_about(capsys: pytest.CaptureFixture[str]) -> None:
    Path("both.py").write_text(OPS + TRITON)
    assert error(capsys, "new", "both.py").endswith(
        "both.py holds kernels of two languages: attend (cutile), other (cutile), softmax (triton), scaled (triton); "
        "name one with --kernel"
    )
    assert not Path("both_task.py").exists()
    assert (
        cli.main(("new", "both.py", "--kernel", "softmax")) == 0 and "both.softmax" in Path("both_task.py").read_text()
    )


# example ------------------------------------------------------------------------------------------


def test_the_examples_are_listed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    shipped = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
    assert cli.main(("example", "--json")) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == shipped and all(one["about"] for one in listed)
    assert cli.main(("example",)) == 0
    assert "rms_norm" in capsys.readouterr().out
    assert cli.main(("example", "rope")) == 0
    assert Path("rope.py").read_text() == (ROOT / "examples" / "rope.py").read_text()
    assert "rope.py exists" in error(capsys, "example", "rope")
    assert "unknown example 'rop'; did you mean 'rope'? known: cute_gemm, fmha" in error(capsys, "example", "rop")


def test_an_example_comes_with_the_files_that_it_imports(capsys: pytest.CaptureFixture[str]) -> None:
    files = ("cute_dsl/gemm_roles.py", "cute_dsl/hopper_gemm.py", "cute_gemm.py")
    Path("cute_dsl").mkdir()
    Path(files[0]).write_text("mine")
    assert "gemm_roles.py exists" in error(capsys, "example", "cute_gemm")
    assert Path(files[0]).read_text() == "mine" and not Path("cute_gemm.py").exists()
    Path(files[0]).unlink()
    assert cli.main(("example", "cute_gemm")) == 0
    assert all(Path(file).read_text() == (ROOT / "examples" / file).read_text() for file in files)


def test_the_wheel_has_the_examples_where_they_are_looked_for() -> None:
    assert '"examples" = "tilewright/examples"' in (ROOT / "pyproject.toml").read_text()
    assert examples.FOLDERS[0] == Path(cli.__file__).parents[1] / "examples"
    for path in (ROOT / "examples").glob("*.py"):
        imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert not imported & {"examples", None}, "an example stands alone"


# Completion ---------------------------------------------------------------------------------------


def completed(*words: str) -> list[str]:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "_TILEWRIGHT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("tilewright", *words)), "COMP_CWORD": str(len(words)),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tilewright"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_shell_completes_commands_architectures_and_workloads() -> None:
    assert {"inspect", "example", "new"} <= set(completed(""))
    assert completed("inspect", "--arch", "sm_10") == ["sm_100", "sm_103", "sm_107"]
    cli.main(("example", "rms_norm"))
    assert completed("tune", "rms_norm.py", "--workload", "o") == ["odd"]


def test_what_can_be_completed() -> None:
    Path("ops").mkdir()
    Path("ops/a.py").write_text("task = tw.Task(name='one', workloads={'small': {}})\nother = tw.Task(name='two')")
    assert completion.task_files("o") == ["ops/"]
    assert completion.task_files("ops/") == ["ops/a.py"]
    assert completion.task_files("ops/a.py:t") == ["ops/a.py:two"]
    assert completion.task_files("nowhere/x") == completion.task_files("missing.py:t") == []
    assert completion.architectures("sm_90,sm_12") == ["sm_90,sm_120", "sm_90,sm_121"]
    assert set(completion.architectures("")) == set(ARCHITECTURES)
    assert completion.kinds("fp8") == ["fp8-matmul"]
