"""A failing tool is no verdict (issue 13, point 8; trust.md 45): each tool, broken in each way, by a real program.

What depends on it is unverified or absent, one line says so with the fix, and the rest goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.optimize.kit import repository
from tests.optimize.test_run import OPTIONS, STEEP

from tilewright.cli import terminal
from tilewright.cli.candidate_table import inspected
from tilewright.compile.compile import Unit, compile_all
from tilewright.doctor import probes as doctor
from tilewright.errors import CompilerMissing, ToolFailed
from tilewright.hardware.architectures import default_board
from tilewright.inspect.compare import Side, compare, compare_tile_ir
from tilewright.inspect.inspect import inspect
from tilewright.inspect.work import count
from tilewright.languages.cutile import cutile, toolchain
from tilewright.languages.cutile.toolchain import Tool, find_tileiras
from tilewright.machine_code import cubin
from tilewright.optimize.loop import optimize
from tilewright.records import Failed
from tilewright.task.loading import load_task
from tilewright.task.task import Task
from tilewright.testing.functions import FunctionEngine
from tilewright.tileir.read import reader
from tilewright.tune.tune import tune
from tilewright.verify import sanitizer_tool, schedule
from tilewright.verify.addresses import Reaching
from tilewright.verify.cases import Case
from tilewright.verify.check import check, check_on
from tilewright.verify.engine import Ran
from tilewright.verify.judge import Unverified
from tilewright.verify.own_shape import OwnShapes
from tilewright.verify.planning import Scope
from tilewright.verify.reference import FloatReference
from tilewright.verify.sanitizer_tool import TOOLS, Watching
from tilewright.verify.schedule import Compiling, Equipment

SCRIPTS = {
    "no execute bit": "exit 0",
    "exit 1": "exit 1",
    "killed by a signal": "kill -SEGV $$",
    "hangs": "sleep 600",
    "prints garbage": r"printf '\377\376 garbage \000 x\n'",
}
FAULTS = ("missing", *SCRIPTS)
OPS = """\
import cuda.tile as ct
import tilewright as tw

@ct.kernel
def twice(x, y, TILE: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), 2 * ct.load(x, (ct.bid(0),), (TILE,)))

task = tw.Task(
    name="twice",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, N, config: tw.Launch(twice, (-(-N // config.TILE),), (x, y, config.TILE)),
    flops=lambda N: N, independent=("N",),
    space=tw.Space(constants={"TILE": (64, 128)}, shipped={"TILE": 64}),
    workloads={"only": {"N": 1000}},
)
"""
BOARD = default_board("sm_90")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    file = tmp_path / "ops.py"
    file.write_text(OPS)
    return load_task(str(file))


def broken(path: Path, fault: str) -> Path:
    """A program that fails in this way."""
    path.parent.mkdir(exist_ok=True)
    if fault != "missing":
        path.write_text(f"#!/bin/sh\n{SCRIPTS[fault]}\n")
        path.chmod(0o644 if fault == "no execute bit" else 0o755)
    return path


def says(text: str, tool: str, path: Path | None = None) -> bool:
    """Whether a message is one line that names the tool and what to do."""
    fix = f"fix: chmod +x {path}" if "permission denied" in text else "fix: "
    return "\n" not in text and tool in text and fix in text


# tileirdisasm -------------------------------------------------------------------------------------


@pytest.fixture(params=FAULTS)
def tileirdisasm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    real = find_tileiras()
    path = broken(tmp_path / "bin" / "tileirdisasm", request.param)
    tool = replace(real, path=path.with_name("tileiras"))
    tool.path.symlink_to(real.path)
    monkeypatch.setattr(reader, "find_tileiras", lambda: tool)
    monkeypatch.setattr(reader, "DISASSEMBLY_SECONDS", 0.05)
    return path


def test_without_tile_ir_a_check_is_unverified(task: Task, tileirdisasm: Path) -> None:
    (verdict,) = check(task, engine="interpreter", quick=True)
    assert verdict.verdict == "unverified"
    assert says(verdict.reason, "tileirdisasm", tileirdisasm), verdict.reason
    assert {result.verdict for result in verdict.results} == {"unverified"}


def test_without_tile_ir_work_is_the_declared_and_the_rest_goes_on(task: Task, tileirdisasm: Path) -> None:
    work = count(task, task.workload("only"), BOARD)
    assert work.source.startswith("as the task declares: not counted, ") and work.flops == 1000
    assert says(work.source, "tileirdisasm", tileirdisasm)
    reached = Reaching(task, BOARD)(task.space.shipped, {"N": 1000}, 0)
    assert reached.verdict == "unverified" and says(reached.reason, "tileirdisasm", tileirdisasm)
    with pytest.raises(Unverified, match="tileirdisasm"):
        OwnShapes(task, BOARD).check(task.space.shipped, {"N": 1000}, 0, FloatReference(task, None))
    side = Side("ops.py", task, task.space.shipped, task.workload("only"))
    with pytest.raises(ToolFailed, match="tileirdisasm") as caught:
        compare_tile_ir(side, side, BOARD)
    assert caught.value.exit_code == 3


def test_without_tile_ir_tuning_goes_on_unverified(task: Task, tileirdisasm: Path) -> None:
    (result,) = tune(task, arch="sm_90", store=False, jobs=1).workloads
    assert result.best is not None and result.best.checked is not None
    assert result.best.checked.verdict == "unverified" and says(
        result.best.checked.reason, "tileirdisasm", tileirdisasm
    )
    assert not [each for each in result.candidates if each.status in ("wrong", "failed")]


def test_without_tile_ir_the_search_of_a_running_program_goes_on(tileirdisasm: Path) -> None:
    """Today's fault: `tilewright run` fell back to cuda-tile's serial search."""
    from tests.runtime import caller_kernels

    machine = caller_kernels.CpuMachine(caller_kernels.doubles, {"TILE=64": 5.0})
    x, y = caller_kernels.vectors()
    from tilewright.runtime.store import warn_once

    warn_once._warned.clear()
    with pytest.warns(warn_once.TunedStoreWarning, match="goes on without the kernel's Tile IR.*tileirdisasm") as said:
        result = caller_kernels.found(
            caller_kernels.space(32, 64, 128), machine, lambda config: (x, y, config["TILE"], 0)
        )
    assert len(said) == 1 and says(str(said[0].message), "tileirdisasm", tileirdisasm)
    assert [outcome.status for outcome in result.outcomes].count("timed") >= 2
    assert not [outcome for outcome in result.outcomes if outcome.status in ("wrong", "failed")]


def test_the_doctor_says_that_tileirdisasm_does_not_work(tileirdisasm: Path) -> None:
    probe = doctor.tileirdisasm()
    assert probe.ok is False and not probe.required and probe.fix
    assert "tileirdisasm" in probe.detail and "\n" not in probe.detail
    assert "tileirdisasm does not work" in doctor.verdict([probe]) and "everything" not in doctor.verdict([probe])


def test_a_disassembler_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = broken(tmp_path / "bin" / "tileirdisasm", "hangs")
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/log\nsleep 600\n")
    monkeypatch.setattr(reader, "find_tileiras", lambda: Tool(program.with_name("tileiras"), (13, 4), "", True))
    monkeypatch.setattr(reader, "DISASSEMBLY_SECONDS", 0.5)
    for _ in range(3):
        with pytest.raises(ToolFailed, match="tileirdisasm did not end"):
            reader.disassemble(b"")
    assert (tmp_path / "log").read_text() == "asked\n"


# nvdisasm -----------------------------------------------------------------------------------------


@pytest.fixture(params=FAULTS)
def nvdisasm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = broken(tmp_path / "bin" / "nvdisasm", request.param)
    monkeypatch.setattr(cubin, "_places", lambda: iter([path]))
    monkeypatch.setattr(cubin, "DISASSEMBLY_SECONDS", 0.05)
    cubin.find_nvdisasm.cache_clear()
    yield path
    cubin.find_nvdisasm.cache_clear()


def test_without_nvdisasm_inspect_and_tune_predict_from_the_headers(
    task: Task, nvdisasm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Registers, occupancy and the roofline are known; spills and tensor paths are absent, and one line says so."""
    rows = inspect(task, "sm_90", jobs=1)
    (result,) = tune(task, arch="sm_90", store=False, jobs=1).workloads
    assert result.best is not None and result.best.checked is not None and result.best.checked.right
    for candidate in (*(row.candidate for row in rows), *result.candidates):
        assert candidate.status in ("predicted", "duplicate", "screened") and candidate.code and candidate.predicted
        assert says(candidate.code.unread, "nvdisasm", nvdisasm), candidate.code.unread
        assert candidate.code.registers > 0 and candidate.code.instructions > 0
        assert candidate.predicted.us > result.bound.speed_of_light_us
        assert candidate.predicted.why.endswith("instructions not read")
    shown = [row.to_json() for row in rows]
    assert all(row["registers"] and row["predicted_us"] for row in shown)
    assert {row[name] for row in shown for name in ("local_stores", "tensor_path", "copies")} == {None}
    terminal.stdout().print(inspected(rows))
    (line,) = " ".join(capsys.readouterr().out.split()).split("without instructions")[1:]
    assert "nvdisasm" in line and "lower estimates" in line and "fix: " in line


def test_without_nvdisasm_optimize_goes_on_and_keeps_nothing_on_a_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger tile, which is kept where the instructions are known, is left for a GPU to confirm."""
    path = broken(tmp_path / "bin" / "nvdisasm", "no execute bit")
    monkeypatch.setattr(cubin, "_places", lambda: iter([path]))
    cubin.find_nvdisasm.cache_clear()
    file = repository(tmp_path / "user", STEEP)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    result = optimize(str(file), arch="sm_90", options=OPTIONS, seed=1)
    cubin.find_nvdisasm.cache_clear()
    _, *tried = result.iterations
    assert tried and not [iteration for iteration in tried if iteration.status in ("keep", "crash")]
    assert result.to_confirm
    reasons = " ".join(iteration.reason for iteration in tried)
    assert f"fix: chmod +x {path}" in reasons and "confirm it on a GPU" in reasons


def test_a_disassembler_of_machine_code_that_hangs_is_asked_once(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = broken(tmp_path / "bin" / "nvdisasm", "hangs")
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/log\nsleep 600\n")
    monkeypatch.setattr(cubin, "find_nvdisasm", lambda: program)
    monkeypatch.setattr(cubin, "DISASSEMBLY_SECONDS", 0.5)
    for _ in range(2):
        rows = inspect(task, "sm_90", jobs=1)
        assert all(row.candidate.code and "nvdisasm did not end" in row.candidate.code.unread for row in rows)
    assert (tmp_path / "log").read_text() == "asked\n"


def test_without_nvdisasm_a_check_goes_on_and_tile_ir_is_compared(task: Task, nvdisasm: Path) -> None:
    (verdict,) = check(task, engine="interpreter", quick=True)
    assert verdict.verdict.startswith("correct")
    side = Side("ops.py", task, task.space.shipped, task.workload("only"))
    found = compare(side, side, BOARD)
    assert found.identical, "the bytes of the code are equal"
    assert not isinstance(found.code_after, Failed) and says(found.code_after.unread, "nvdisasm", nvdisasm)


# tileiras -----------------------------------------------------------------------------------------


@pytest.fixture(params=FAULTS)
def tileiras(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that said its version once, and then broke."""
    real = find_tileiras()
    path = broken(tmp_path / "bin" / "tileiras", request.param)
    monkeypatch.setattr(cutile, "find_tileiras", lambda: replace(real, path=path))
    return path


def test_a_broken_compiler_is_no_candidates_mistake(task: Task, tileiras: Path) -> None:
    unit = Unit(task.workload("only"), task.space.shipped, BOARD)
    try:
        (compiled,) = compile_all(task, [unit], jobs=1, seconds=0.1)
        assert isinstance(compiled.built, Failed) and compiled.built.stage == "tool"
        text = compiled.built.reason
    except CompilerMissing as error:
        text = str(error)
        assert says(text, "tileiras", tileiras)
    assert "\n" not in text and "tileiras" in text
    with pytest.raises(ToolFailed) as caught:
        inspect(task, "sm_90", jobs=1, seconds=0.1)
    assert caught.value.exit_code == 3


def test_a_broken_compiler_is_no_verdict_on_the_gpu_either(
    task: Task, tileiras: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch fails, and so does asking the compiler why."""

    class Fails(FunctionEngine):
        def run(self, *args: Any, **options: Any) -> Ran:
            return Ran(failed=Failed("compile", "the launch could not compile"))

    monkeypatch.setattr(schedule, "BUDGET_SECONDS", 0.1)
    compiles = Compiling(task, BOARD, to_machine_code=True)
    try:
        verdict = check_on(task, Equipment(Fails(task, lambda run: None), compiles=compiles), Scope(quick=True))
    except CompilerMissing as error:
        assert says(str(error), "tileiras", tileiras)
        return
    assert verdict.verdict == "unverified" and "tileiras" in verdict.reason


def test_a_broken_compiler_is_named_where_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tileiras: Path
) -> None:
    monkeypatch.setattr(toolchain, "_from_pip", lambda: None)
    monkeypatch.setattr(toolchain, "_pip_folders", list)
    monkeypatch.setattr(toolchain, "VERSION_SECONDS", 0.1)
    monkeypatch.setenv("PATH", f"{tileiras.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    toolchain._found.cache_clear()
    try:
        with pytest.raises(CompilerMissing) as caught:
            find_tileiras()
    finally:
        toolchain._found.cache_clear()
    assert says(str(caught.value), "tileiras")


# compute-sanitizer --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_sanitizer_leaves_the_verdict(
    task: Task, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = broken(tmp_path / "bin" / "compute-sanitizer", fault)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(sanitizer_tool, "SECONDS", 0.2)
    real = sanitizer_tool.sanitize
    monkeypatch.setattr(sanitizer_tool, "sanitize", lambda *args, **options: real(*args, seconds=0.3, **options))
    watching = Watching(task)
    watching.start(task.space.shipped, Case((("N", 33),)))
    engine = FunctionEngine(task, lambda run: run["y"].__setitem__(..., 2 * run["x"]))
    verdict = watching.joined(check_on(task, Equipment(engine), Scope(quick=True)))
    watching.close()
    assert verdict.verdict.startswith("correct") and not verdict.findings
    if fault in ("missing", "no execute bit"):
        (line,) = verdict.tools
        assert "not on this machine" in line or says(line, "compute-sanitizer", path)
    else:
        assert len(verdict.tools) == len(TOOLS) and all("\n" not in line for line in verdict.tools)
        assert sum("compute-sanitizer" in line or "check" in line for line in verdict.unverified) >= len(TOOLS)


def test_the_doctor_runs_the_sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.doctor.test_probes import H200

    broken(tmp_path / "bin" / "compute-sanitizer", "killed by a signal")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(ToolFailed, match="compute-sanitizer was killed by signal 11"):
        doctor.compute_sanitizer(H200)
