"""Triton tasks that cannot be used as they are: one clear line each, with the choices, and the rest goes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli import main as cli
from tilewright.compile.compile import Unit, compile_all
from tilewright.errors import TaskError
from tilewright.hardware.architectures import default_board
from tilewright.inspect.inspect import inspect
from tilewright.languages.triton import front_end, ptx, versions
from tilewright.mcp import work
from tilewright.progress import silent
from tilewright.records import Built
from tilewright.task.loading import load_task
from tilewright.tune.tune import tune
from tilewright.verify.check import check

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]
HAS_BLOCK_POINTERS = versions.numbers_of(metadata.version("triton")) < (3, 9)
TASK = """
import cuda.tile as ct
import triton
import triton.language as tl
from triton.experimental import gluon

import tilewright as tw


@triton.jit
def negated(x, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < count)
    BODY
    tl.store(out + at, values, mask=at < count)


@triton.jit
def by_descriptors(x, out, count, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [4, count // 4], [count // 4, 1], [4, BLOCK])
    target = tl.make_tensor_descriptor(out, [4, count // 4], [count // 4, 1], [4, BLOCK])
    at = tl.program_id(0) * BLOCK
    target.store([0, at], -source.load([0, at]))


@gluon.jit
def by_gluon(x, out, count, BLOCK):
    pass


@ct.kernel
def in_cutile(x, out, count, BLOCK: ct.Constant[int]):
    ct.store(out, (ct.bid(0),), -ct.load(x, (ct.bid(0),), (BLOCK,)))


def launch(x, out, N, config):
    return tw.Launch(KERNEL, (-(-N // config.BLOCK),), (x, out, N, config.BLOCK))


KNOBS = KNOBS_
task = tw.Task(
    name="negated",
    tensors={"x": tw.Tensor(("N",), "float32"), "out": tw.Output(("N",), "float32")},
    reference=lambda x: -x,
    launch=launch,
    flops=lambda N: N,
    space=tw.Space(
        constants={"BLOCK": (256,), **{name: values for name, values in KNOBS.items() if name == "LANGUAGE"}},
        hints={name: values for name, values in KNOBS.items() if name != "LANGUAGE"},
        shipped={"BLOCK": 256, **{name: values[0] for name, values in KNOBS.items()}},
    ),
    workloads={"small": {"N": SIZE}},
)
"""
NEGATES = "values = -values"
ASSEMBLY = 'values = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [values], tl.float32, True, 1)'
GATHERS = "values = tl.gather(-values, tl.arange(0, BLOCK), 0)"
ROUTES: dict[str, Any] = {"route": ("ptx", "tileir")}
LINE = TASK.splitlines().index("    BODY") + 1


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(body: str = NEGATES, kernel: str = "negated", size: int = 1024, **knobs: Any) -> str:
    text = TASK.replace("BODY", body).replace("KERNEL", kernel).replace("SIZE", str(size))
    Path("task.py").write_text(text.replace("KNOBS_", repr(knobs)))
    return "task.py"


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The only line of the error with which a command ends."""
    assert cli.main(arguments) == code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


# What Tile IR lacks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "named"), [(ASSEMBLY, "tt.elementwise_inline_asm (inline assembly)"), (GATHERS, "tt.gather")]
)
def test_what_tile_ir_lacks_is_named_with_its_line_and_the_other_route_goes_on(
    body: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"task.py:{LINE}: Tile IR has no counterpart of {named}; fix: "
    line = refused(capsys, 2, "check", written(body, route=("tileir",)))
    assert f"{said}route=ptx compiles it" in line

    assert cli.main(("check", written(body), "--quick", "--json", "--engine", "interpreter")) == 3
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["verdict"] == "unverified" and f"{said}check it on a GPU" in verdict["reason"]

    (workload,) = tune(written(body, **ROUTES), arch="sm_90", store=False).workloads
    assert workload.best is not None and workload.best.configuration["route"] == "ptx"
    (failed,) = [each.reason for each in workload.candidates if each.status == "failed"]
    assert f"{said}route=ptx compiles it" in failed


def test_gluon_is_refused_with_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("check", "tune"):
        line = refused(capsys, 2, command, written(kernel="by_gluon"))
        assert "'by_gluon' is a gluon kernel; fix: write it with @triton.jit" in line


BY_BLOCK_POINTERS = """p = tl.make_block_ptr(x, (count,), (1,), (tl.program_id(0) * BLOCK,), (BLOCK,), (0,))
    values = -tl.load(p, boundary_check=(0,))"""


@pytest.mark.skipif(HAS_BLOCK_POINTERS, reason="this triton has block pointers")
def test_block_pointers_are_replaced_by_a_patch(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = f"error: task.py:{LINE}: NotImplementedError: Block pointers have been removed"
    said = refused(capsys, 2, "check", written(BY_BLOCK_POINTERS), "--quick")
    assert said.startswith(refusal) and "; fix: tilewright optimize writes a patch" in said
    said = refused(capsys, 2, "optimize", "task.py")
    (fix,) = re.findall("; fix: (git apply .*block_pointers.patch), then", said)
    patch = Path(fix.split()[-1])
    patch.unlink()
    with pytest.raises(TaskError, match=fix):  # the tool of agents writes it too
        work.optimize(silent, "task.py")
    subprocess.run(fix.split(), check=True)
    assert "make_block_ptr" not in Path("task.py").read_text()
    assert cli.main(("check", "task.py", "--quick")) == 0

    said = refused(capsys, 2, "optimize", written(BY_BLOCK_POINTERS + "\n    other = p"))
    assert said.startswith(refusal) and f"; no patch was written: task.py:{LINE + 2}: block pointer not" in said


@pytest.mark.parametrize("route", ["ptx", "tileir"])
def test_misaligned_strides_of_a_descriptor_are_said_on_both_routes(route: str) -> None:
    task = written(kernel="by_descriptors", size=1000, route=(route,))  # 250 floats a row are 1,000 bytes
    (verdict,) = check(task, engine="interpreter", quick=True)
    assert verdict.verdict == "incorrect"
    findings = [str(finding) for result in verdict.results for finding in result.findings]
    assert any("a stride of a tensor descriptor is no multiple of 16 bytes" in finding for finding in findings)


# Languages ----------------------------------------------------------------------------------------

BY_CONFIGURATION = '{"triton": negated, "cutile": in_cutile}[config.LANGUAGE]'
MIXED = (
    "task 'negated' mixes languages: BLOCK=256,LANGUAGE=triton launches a kernel of 'triton', "
    "BLOCK=256,LANGUAGE=cutile launches a kernel of 'cutile'; fix: write one implementation for each language "
    "(implementations=)"
)


@pytest.mark.parametrize("command", ["check", "tune", "inspect", "optimize"])
def test_a_space_of_two_languages_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    task = written(kernel=BY_CONFIGURATION, LANGUAGE=("triton", "cutile"))
    assert refused(capsys, 2, command, task) == f"error: {MIXED}"


@pytest.mark.parametrize("function", [check, inspect])
def test_python_refuses_it_too(function: Any) -> None:
    written(kernel=BY_CONFIGURATION, LANGUAGE=("triton", "cutile"))
    with pytest.raises(TaskError, match="mixes languages"):
        function(load_task("task.py"))


def test_a_launch_of_two_languages_is_refused() -> None:
    task = written()
    passes = ("KERNEL_, (-(-N // config.BLOCK),), (x,", "KERNEL_, (-(-N // config.BLOCK),), (in_cutile,")
    Path(task).write_text(Path(task).read_text().replace(*(text.replace("KERNEL_", "negated") for text in passes)))
    for function in (check, inspect):
        with pytest.raises(TaskError, match="passes a kernel of language 'cutile' to one of 'triton'; fix: use only"):
            function(task)


# Hints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("routes", [("ptx",), None])
def test_hints_without_effect_are_compiled_once_and_said(routes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = {"occupancy": (None, 2, 4), "num_worker_warps": (None, 4)} | ({"route": routes} if routes else {})
    task, compiled = load_task(written(**knobs)), []
    assembled = ptx.assembled
    monkeypatch.setattr(ptx, "assembled", lambda *given: (compiled.append(given), assembled(*given))[1])
    (workload,) = tune(task, arch="sm_90", store=False).workloads
    assert len(compiled) == 1 and len(workload.candidates) == 6
    said = {str(each.configuration["occupancy"]) + str(each.configuration["num_worker_warps"]): each.reason
            for each in workload.candidates}  # fmt: skip
    assert said["2None"].endswith("occupancy has no effect with route=ptx")
    assert said["44"].endswith("occupancy, num_worker_warps have no effect with route=ptx")
    assert "no effect" not in said["NoneNone"]


# What is installed --------------------------------------------------------------------------------


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own."""
    paths = [*filter(None, [environment.pop("FIRST", "")]), str(ROOT / "src")]
    whole = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    return subprocess.run([sys.executable, "-m", "tilewright", *arguments], env=whole, capture_output=True, text=True)


@pytest.mark.parametrize("command", ["check", "tune", "inspect", "optimize"])
def test_without_triton_the_machine_cannot_do_it(command: str, here: Path) -> None:
    (here / "without").mkdir()
    (here / "without" / "triton.py").write_text("raise ModuleNotFoundError('gone', name='triton')\n")
    done = started(command, written(), FIRST=str(here / "without"))
    assert done.returncode == 3
    assert (
        "error: task.py:3: needs triton, which is not installed; fix: pip install 'tilewright[triton]'" in done.stderr
    )


def test_a_file_that_a_task_edits_needs_triton_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "without").mkdir()
    (here / "without" / "triton.py").write_text("raise ModuleNotFoundError('gone', name='triton')\n")
    Path("ops.py").write_text("import triton\n")
    Path("outer.py").write_text('import tilewright as tw\n\nops = tw.editable("ops.py")\n')
    done = started("check", "outer.py", FIRST=str(here / "without"))
    assert done.returncode == 3 and "outer.py:3: ops.py:1: needs triton" in done.stderr


@pytest.fixture(params=["3.5.1", "3.10.0"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Names the installed triton otherwise; everything else is as installed."""
    for module in (versions, front_end, sys.modules["tilewright.languages.triton.triton"]):
        monkeypatch.setattr(module, "installed_version", lambda package: request.param)
    return str(request.param)


def test_another_version_is_noted_and_used(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    age = "older" if version == "3.5.1" else "newer"
    assert cli.main(("check", written(), "--quick")) == 0
    said = f"triton {version} is {age} than the tested versions (3.6, 3.9)"
    note = f"note: {said}; if it fails: pip install 'triton>=3.6,<3.10'"
    assert capsys.readouterr().err.splitlines().count(note) == 1
    assert versions.needs()[0] is None, "doctor does not say that it works"


def test_another_version_that_fails_is_refused(
    version: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 3.5.1 does: it has no ``instrumentation_mode`` among its knobs."""
    import triton

    monkeypatch.delattr(type(triton.knobs.compilation), "instrumentation_mode")
    line = refused(capsys, 3, "check", written(), "--quick")
    assert f"triton {version} does not work with Tilewright (tested: 3.6, 3.9)" in line
    assert line.endswith("; fix: pip install 'triton>=3.6,<3.10'")


def test_without_a_c_compiler_kernels_compile_and_are_verified(here: Path) -> None:
    """Triton itself needs one to launch; Tilewright launches through the driver."""
    (here / "empty").mkdir()
    done = started("check", written(**ROUTES), "--quick", PATH=str(here / "empty"), CC="")
    assert done.returncode == 0, done.stderr
    task, board = load_task("task.py"), default_board("sm_90")
    for compiled in compile_all(task, [Unit(task.workload("small"), task.space.shipped, board)]):
        assert isinstance(compiled.built, Built)
