"""The command line as a person and a script use it: real examples, and every mistake one can make."""

from __future__ import annotations

import errno
import inspect as signatures
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Literal

import pytest
from rich.console import Console
from tests.made_runs import tune_run, tuned_workload
from tests.processes import until

from tilewright.cli import bars, doctor, exit_codes, terminal
from tilewright.cli import main as cli
from tilewright.cli import shared as cli_shared
from tilewright.cli import tune as cli_tune
from tilewright.cli.interruption import Interrupted, Signalled
from tilewright.compile import compile
from tilewright.doctor.probes import INSTALL, Probe
from tilewright.hardware.gpu import Gpu, detect
from tilewright.languages.cutile import toolchain
from tilewright.languages.cutile.cutile import CuTile
from tilewright.ledger.tunings import TuneLedger
from tilewright.progress import BEST
from tilewright.race.rules import Policy
from tilewright.records import Failed
from tilewright.task import loading

ROOT = Path(__file__).parents[2]
RMS_NORM = str(ROOT / "examples" / "rms_norm.py")
MATMUL = str(ROOT / "examples" / "matmul.py")
ONE = ("--config", "TILE_M=1,BLOCKS_PER_SM=1")

PROMISED = {
    "config", "arch", "status", "reason", "registers", "stack_bytes", "shared_bytes", "local_loads",
    "local_stores", "tensor_path", "code_hash", "compile_seconds", "predicted_us", "bound",
}  # fmt: skip

SMALL = """
    import cuda.tile as ct
    import tilewright as tw

    @ct.kernel
    def scale(x, y, TILE: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(y, (i,), ct.load(x, (i,), (TILE,)) * 2)

    def launch(x, y, N, config):
        return tw.Launch(scale, (-(-N // config.TILE),), (x, y, config.TILE))

    def make(name="scale", launch=launch, **changes):
        space = tw.Space(constants={"TILE": (256, 512)}, shipped={"TILE": 256})
        parts = dict(
            name=name, launch=launch, space=space,
            tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
            reference=lambda x: 2 * x, workloads={"small": {"N": 4096}, "large": {"N": 8192}},
            flops=lambda N: N,
        )
        return tw.Task(**parts | changes)
"""


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def error(self) -> str:
        """The only ``error:`` line; a traceback fails the test."""
        assert "Traceback" not in self.err
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line


Run = Callable[..., Ran]
TaskFile = Callable[[str], str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        code = cli.main(arguments)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def task_file(tmp_path: Path) -> TaskFile:
    """A task file of `SMALL` and the given lines."""

    def write(lines: str, name: str = "ops.py") -> str:
        path = tmp_path / name
        path.write_text(dedent(SMALL) + dedent(lines))
        return str(path)

    return write


def child(*arguments: str, before: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
    """``before``: words before the command, such as ``nohup``."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))),
        **environment,
    }
    command = [*before, sys.executable, "-m", "tilewright", *arguments]
    return subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


# The commands -------------------------------------------------------------------------------------


def test_the_module_runs() -> None:
    out, err = child("--version").communicate()
    assert re.fullmatch(r"tilewright \d+\.\d+\.\d+\n", out) and not err


def test_every_command_has_help_with_an_example(run: Run) -> None:
    listed = run()
    assert listed.code == 0
    for command in ("inspect", "compare", "tune", "doctor"):
        assert command in listed.out
        assert f"Example: tilewright {command}" in run(command, "--help").out


def test_the_help_tells_the_defaults_that_the_functions_have() -> None:
    from tilewright.tune import tune as tuning

    assert cli_shared.DEFAULT_BUDGET == compile.BUDGET_SECONDS
    assert Policy().tie_band == cli_tune.DEFAULT_TIE_BAND
    assert signatures.signature(tuning.tune).parameters["top"].default == cli_tune.DEFAULT_TOP
    assert (Policy().l2, Policy().launch) == ("cold", "graph")


def test_inspect_prints_one_json_array_and_nothing_else(run: Run) -> None:
    ran = run("inspect", RMS_NORM, *ONE, "--arch", "sm_90,sm_100,sm_90", "--json")
    assert ran.code == 0
    rows = json.loads(ran.out)
    assert [row["arch"] for row in rows] == ["sm_90", "sm_100"]
    for row in rows:
        assert row.keys() >= PROMISED
        assert row["config"]["TILE_M"] == 1 and row["registers"] > 0 and row["predicted_us"] > 0
    assert ran.err == ""


def test_inspect_shows_a_table_and_the_bound(run: Run) -> None:
    ran = run("inspect", RMS_NORM, *ONE, "--arch", "sm_90", "--workload", "2048x4096")
    assert ran.code == 0
    assert "sm_90 (H200), workload 2048x4096" in ran.out
    assert "predicted" in ran.out and "bound: memory" in ran.out


def test_a_triton_kernel_leaves_nothing_on_stderr() -> None:
    """Triton 3.9 lists the objects that Python has not freed at its end."""
    pytest.importorskip("triton")
    softmax = str(ROOT / "examples" / "triton" / "softmax.py")
    inspecting = child("inspect", softmax, "--arch", "sm_90", "--config", "num_warps=4", "--json")
    out, err = inspecting.communicate(timeout=300)
    assert inspecting.returncode == 0 and json.loads(out) and err == ""


def test_inspect_reads_the_tensor_path_of_the_issue(run: Run) -> None:
    ran = run("inspect", MATMUL, "--arch", "sm_90", "--config", "TILE_M=128,TILE_N=128,TILE_K=64", "--json")
    (row,) = json.loads(ran.out)
    assert row["tensor_path"] == "HGMMA" and row["bound"] == "compute"
    lines = Path(MATMUL).read_text().splitlines()
    said = {remark["category"]: lines[remark["line"] - 1] for remark in row["remarks"]}
    assert "ct.mma" in said["tensorcore"], "the compiler's remarks name their source lines"


def test_without_an_architecture_the_default_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.hardware.gpu.detect", lambda: None)
    ran = run("inspect", RMS_NORM, *ONE, "--json")
    assert json.loads(ran.out)[0]["arch"] == "sm_90"
    assert ran.err == "note: no GPU here: using sm_90; choose with --arch\n"


@pytest.mark.parametrize("wrong", [("none.py",), (RMS_NORM, "--workload", "none")])
def test_a_request_that_tune_refuses_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tilewright.hardware.gpu.detect", lambda: None)
    ran = run("tune", *wrong, "--no-store")
    assert ran.code == 2 and ran.err.startswith("error: ") and ran.err.count("\n") == 1


def test_without_an_architecture_the_gpu_decides(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("NVIDIA B200", "sm_100", 148, 180 << 30, 126 << 20, "13.0")
    monkeypatch.setattr("tilewright.hardware.gpu.detect", lambda: gpu)
    ran = run("inspect", RMS_NORM, *ONE, "--json")
    assert json.loads(ran.out)[0]["arch"] == "sm_100" and not ran.err


def test_what_the_space_forbids_is_compiled_when_asked_for_and_said(run: Run, task_file: TaskFile) -> None:
    space = 'tw.Space(constants={"TILE": (256, 512)}, shipped={"TILE": 256}, where=(lambda TILE: TILE < 512,))'
    where = task_file(f"task = make(space={space})")
    ran = run("inspect", where, "--arch", "sm_90", "--config", "TILE=512", "--json")
    assert ran.code == 0 and json.loads(ran.out)[0]["registers"] > 0
    assert ran.err.startswith("note: outside the space on sm_90: ") and "TILE=512" in ran.err


@pytest.mark.parametrize("command", ["inspect", "tune"])
def test_a_value_that_the_space_drops_is_said(run: Run, task_file: TaskFile, command: str) -> None:
    space = 'tw.Space(constants={"TILE": (256, 512)}, shipped={"TILE": 256}, where=(lambda TILE: TILE < 512,))'
    ran = run(command, task_file(f"task = make(space={space})"), "--arch", "sm_90", "--json")
    assert ran.code == 0 and "note: left out on sm_90: TILE=512: 'TILE < 512' does not hold" in ran.err


def test_a_task_file_that_prints_does_not_spoil_the_json(run: Run, task_file: TaskFile) -> None:
    ran = run("inspect", task_file('print("hello")\ntask = make()'), "--arch", "sm_90", "--json")
    assert len(json.loads(ran.out)) == 2
    assert "hello" in ran.err


def test_doctor_says_what_works(run: Run) -> None:
    ran = run("doctor")
    assert ran.code == 0 and "inspect and predict" in ran.out and "compiling for sm_90" in ran.out


def test_doctor_fails_where_nothing_can_be_predicted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (Probe("tileiras", False, "not installed", INSTALL),)
    monkeypatch.setattr(doctor, "examine", lambda: broken)
    assert run("doctor").code == 3
    said = run("doctor", "--json")
    assert said.code == 3 and json.loads(said.out)["checks"][0]["fix"] == INSTALL


# tune, without a GPU ------------------------------------------------------------------------------

no_gpu = pytest.mark.skipif(detect() is not None, reason="what tune says where there is no GPU")


@no_gpu
def test_tune_prints_one_json_object(run: Run, task_file: TaskFile) -> None:
    ran = run("tune", task_file("task = make()"), "--arch", "sm_90", "--no-store", "--json")
    assert ran.code == 0
    result = json.loads(ran.out)
    assert result["measured"] is False and result["machine"]["arch"] == "sm_90"
    assert [one["workload"] for one in result["workloads"]] == ["small", "large"]
    for one in result["workloads"]:
        assert one.keys() >= {"best", "tied", "candidates"}
        assert one["best"]["predicted_us"] > 0 and one["best"]["measured_us"] is None
        assert one["best"].keys() >= {"config", "interval_us"} and len(one["candidates"]) == 2
    assert "predicted, not measured" in ran.err


@no_gpu
def test_tune_without_a_gpu_ends_with_predicted_not_measured(run: Run, task_file: TaskFile) -> None:
    ran = run("tune", task_file("task = make()"), "--workload", "large")
    assert ran.code == 0
    assert ran.out.rstrip().endswith("predicted, not measured")
    assert "note: no GPU here" in ran.err and "sm_90" in ran.err
    assert "workload large" in ran.out and "workload small" not in ran.out
    assert "stored as run" in ran.out


@no_gpu
def test_tune_keeps_its_results_where_it_is_told(run: Run, task_file: TaskFile, tmp_path: Path) -> None:
    kept, where = tmp_path / "kept.db", task_file("task = make()")
    assert run("tune", where, "--arch", "sm_90", "--workload", "small", "--store", str(kept)).code == 0
    assert kept.exists()
    assert not (tmp_path / "tilewright-home").exists()
    assert "exclude each other" in run("tune", where, "--store", str(kept), "--no-store").error


@no_gpu
def test_tune_writes_a_table_and_keeps_the_rows_of_others(run: Run, task_file: TaskFile, tmp_path: Path) -> None:
    """A prediction replaces an earlier prediction, and never a measured row."""
    words, file = (task_file("task = make()"), "--arch", "sm_90", "--no-store", "--into", "tables"), "tables/scale.json"
    ran = run("tune", *words, "--json")
    assert ran.code == 0 and json.loads(ran.out)["file"] == file
    made = json.loads(Path(file).read_text())
    assert [(row["label"], row["us"]) for row in made["rows"]] == [
        (f"{name}: predicted, not measured", None) for name in ("small", "large")
    ]
    small, large = made["rows"]
    assert small["config"]["TILE"] in (256, 512) and small["parts"]["arrays"]["x"]["shape"] == [4096]
    small |= {"us": 2.5, "label": "small", "config": {"TILE": 0}}
    other = {**large, "parts": large["parts"] | {"board": "B200 sm_100"}, "config": {"TILE": 1}}
    made["rows"] = [small, {**large, "config": {"TILE": 2}}, other]
    Path(file).write_text(json.dumps(made))
    ran = run("tune", *words)
    assert f"{file}: 3 rows of scale; only in the file, and kept: 1 of B200 sm_100\n2 new rows are predicted" in ran.out
    tiles = [row["config"]["TILE"] for row in json.loads(Path(file).read_text())["rows"]]
    assert tiles == [0, large["config"]["TILE"], 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "tables/scale.json is no file of tuned configurations"),
        (None, "tables/scale.json has the configurations of other.scale, not of ops.scale"),
    ],
)
@no_gpu
def test_a_table_that_cannot_be_kept_is_not_replaced(
    content: str | None, said: str, run: Run, task_file: TaskFile
) -> None:
    where = task_file("task = make()")
    if content is None:
        words = ("--arch", "sm_90", "--workload", "small", "--no-store", "--into", "tables")
        assert run("tune", task_file("task = make()", "other.py"), *words).code == 0
    else:
        Path("tables").mkdir()
        Path("tables/scale.json").write_text(content)
    before = Path("tables/scale.json").read_text()
    ran = run("tune", where, "--arch", "sm_90", "--workload", "small", "--no-store", "--into", "tables")
    assert said in ran.error and ran.error.endswith("fix: another folder, or remove the file") and ran.code == 2
    assert Path("tables/scale.json").read_text() == before and not ran.out


@no_gpu
def test_tune_that_finds_nothing_says_no(run: Run, task_file: TaskFile) -> None:
    where = task_file("task = make(reference=lambda x: 3 * x)")
    ran = run("tune", where, "--arch", "sm_90", "--workload", "small", "--no-store", "--into", "tables", "--json")
    (only,) = json.loads(ran.out)["workloads"]
    assert ran.code == 1 and only["best"] is None and json.loads(ran.out)["file"] is None
    assert not [*Path("tables").iterdir()]
    assert all(one["verdict"] == "incorrect" and one["reason"] for one in only["candidates"])


BROKEN = {
    "launch": ("def launch(x, y, config):\n    return tw.Launch(no_such_thing, (1,), ())", "NameError"),
    "kernel": (
        "@ct.kernel\ndef wrong(x, y, TILE: ct.Constant[int]):\n    ct.store(y, (0,), no_such_thing)\n\n"
        "def launch(x, y, config): return tw.Launch(wrong, (1,), (x, y, config.TILE))",
        "Undefined variable",
    ),
}
"""What fails for every configuration → the lines of the task file, and a part of the error."""


@no_gpu
@pytest.mark.parametrize("command", [("check",), ("tune", "--no-store"), ("optimize",)], ids=" ".join)
@pytest.mark.parametrize("part", BROKEN)
def test_what_fails_for_every_configuration_is_an_error_of_the_request(
    run: Run, tmp_path: Path, command: tuple[str, ...], part: str
) -> None:
    lines, message = BROKEN[part]
    file = tmp_path / "ops.py"
    file.write_text(f"{dedent(SMALL)}\n{lines}\n\ntask = make(launch=launch)\n")
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if "no_such_thing" in line)
    ran = run(command[0], str(file), "--arch", "sm_90", *command[1:])
    assert ran.code == 2 and ran.error.startswith(f"error: ops.py:{number}: ") and message in ran.error
    assert f"the {part} " in ran.error and "configuration)" in ran.error
    inspected = run("inspect", str(file), "--arch", "sm_90")
    assert inspected.code == 1 and f"ops.py:{number}: " in inspected.out


@no_gpu
def test_a_compiler_that_fails_for_every_configuration_is_an_error_of_the_request(
    run: Run, task_file: TaskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Failed("compile", "ops.py:7: tileiras returned 1")
    monkeypatch.setattr(CuTile, "assemble", lambda self, lowered, seconds: failed)
    ran = run("tune", task_file("task = make()"), "--arch", "sm_90", "--no-store")
    assert ran.code == 2 and "ops.py:7: tileiras returned 1 (task 'scale': the kernel compiles for no" in ran.error


def test_several_configurations_can_be_named(run: Run, task_file: TaskFile) -> None:
    where = task_file("task = make()")
    two = ("--config", "TILE=256", "--config", "TILE=512", "--arch", "sm_90")
    assert [row["config"]["TILE"] for row in json.loads(run("inspect", where, *two, "--json").out)] == [256, 512]
    assert "--lines takes one configuration" in run("inspect", where, *two, "--lines").error
    checked = json.loads(run("check", where, *two, "--quick", "--engine", "interpreter", "--json").out)
    assert [configuration["TILE"] for configuration in checked["configurations"]] == [256, 512]


def test_a_note_serves_all_workloads_that_it_is_about(run: Run, task_file: TaskFile) -> None:
    where = task_file("""
        space = tw.Space(constants={"TILE": (256, 8192, 1 << 14)}, shipped={"TILE": 256},
                         where=[lambda TILE, N: TILE <= N])
        task = make(space=space)
    """)
    notes = [line for line in run("tune", where, "--arch", "sm_90", "--no-store").err.splitlines() if "left" in line]
    assert notes == [
        "note: left out on sm_90 for small: TILE=8192: 'TILE <= N' does not hold",
        "note: left out on sm_90: TILE=16384: 'TILE <= N' does not hold",
    ]


def test_a_file_without_a_task_says_how_to_get_one(run: Run, task_file: TaskFile) -> None:
    assert "tilewright new " in run("check", task_file("")).error


@no_gpu
def test_tune_says_so_when_the_reference_has_the_wrong_shape(run: Run, task_file: TaskFile) -> None:
    ran = run("tune", task_file("task = make(reference=lambda x: x[:7])"), "--arch", "sm_90", "--no-store")
    assert ran.code == 2 and "(7,)" in ran.error and "(4096,)" in ran.error


def test_tune_for_another_architecture_than_the_gpus_predicts(
    run: Run, task_file: TaskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu("NVIDIA H200", "sm_90", 132, 141 << 30, 50 << 20, "13.0")
    for module in ("tilewright.hardware.gpu", "tilewright.tune.tune"):
        monkeypatch.setattr(import_module(module), "detect", lambda: gpu)
    ran = run("tune", task_file("task = make()"), "--arch", "sm_100", "--workload", "small", "--no-store")
    assert ran.code == 0 and ran.out.rstrip().endswith("predicted, not measured")
    assert "this machine's GPU is sm_90" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [("inspect",), ("inspect", "--lines"), ("tune", "--no-store"), ("check", "--engine", "interpreter", "--quick")],
    ids=" ".join,
)
def test_what_is_printed_fits_a_terminal_of_80_columns(
    run: Run, task_file: TaskFile, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    where = task_file("task = make('a_task_with_quite_a_long_name')")
    ran = run(arguments[0], where, "--arch", "sm_90", *arguments[1:])
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 80 and "…" not in ran.out


def test_a_comparison_fits_a_terminal_of_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    configs = ("--config-a", "TILE_M=4", "--config-b", "num_worker_warps=8,occupancy=2,BLOCKS_PER_SM=2")
    ran = run("compare", RMS_NORM, RMS_NORM, *configs, "--arch", "sm_90")
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 80
    assert "registers" in ran.out and "hints of the kernel" in ran.out


# The request is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "tune"])
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("def broken(:", r"ops\.py:\d+: does not import: SyntaxError"),
        ("import no_such_module", r"ops\.py:\d+: does not import: ModuleNotFoundError.*no_such_module"),
        ("task = undefined", r"ops\.py:\d+: does not import: NameError"),
        ("", r"holds no task"),
        ('a = make("one")\nb = make("two")', r"holds 2 tasks \(one, two\): name one, e\.g\. .*ops\.py:one"),
        ("task = make(space=tw.Space(constants={'TILE': ()}, shipped={'TILE': 1}))", r"'TILE'.*is empty"),
        ("task = make(space={'TILE': (256, 512)})", r"ops\.py:\d+: space is .*dict.*; pass tilewright\.Space"),
        ("task = make(space=({'TILE': t} for t in (1, 2)))", r"space is .*generator.*; pass tilewright\.Space"),
        ("task = make(space=[])", r"space is .*list.*; pass tilewright\.Space"),
        ("task = make(workloads={})", r"has no workloads"),
        ("raise SystemExit(1)", r"ops\.py"),
        ("import os\nos._exit(0)", r"ops\.py:\d+: does not import: SystemExit: it calls os\._exit\(0\)"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_task_file_that_cannot_be_used(run: Run, task_file: TaskFile, command: str, lines: str, said: str) -> None:
    ran = run(command, task_file(lines), "--arch", "sm_90", "--json")
    assert ran.code == 2 and re.search(said, ran.error), ran.error
    assert json.loads(ran.out) == {
        "error": {"kind": "request", "message": ran.error.removeprefix("error: "), "exit_code": 2}
    }


def test_an_error_in_the_reference_names_the_line(run: Run, task_file: TaskFile) -> None:
    ran = run("check", task_file("task = make(reference=lambda x: x.nothing)"), "--arch", "sm_90")
    assert ran.code == 2 and re.search(r"reference of task '\w+' failed: ops\.py:\d+: AttributeError", ran.error), (
        ran.error
    )


def test_an_error_in_serves_names_the_shape_and_the_line(run: Run, task_file: TaskFile) -> None:
    where = task_file("task = make(serves=lambda N: N >= 4096 or N // 0)")
    ran = run("check", where, "--arch", "sm_90")
    assert ran.code == 2
    assert re.search(r"serves of task '\w+' for N=\d+ failed: ops\.py:\d+: ZeroDivisionError", ran.error), ran.error


def test_a_process_that_a_task_file_forks_may_end(run: Run, task_file: TaskFile) -> None:
    where = task_file(
        "import os\nchild = os.fork()\nif not child:\n    os._exit(0)\nos.waitpid(child, 0)\ntask = make()"
    )
    assert run("inspect", where, "--arch", "sm_90", "--config", "TILE=256").code == 0


def test_one_of_two_tasks_can_be_named(run: Run, task_file: TaskFile) -> None:
    where = task_file('a = make("one")\nb = make("two")')
    assert run("inspect", f"{where}:two", "--arch", "sm_90", "--config", "TILE=256").code == 0
    assert "unknown task in" in run("inspect", f"{where}:three", "--arch", "sm_90").error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("inspect", "missing.py"), "no such task file: missing.py"),
        (("inspect", RMS_NORM, "--arch", "sm_91"), "unknown architecture 'sm_91'; did you mean 'sm_90'? known: sm_80"),
        (("tune", RMS_NORM, "--arch", "sm_91"), "unknown architecture 'sm_91'; did you mean 'sm_90'? known: sm_80"),
        (("tune", RMS_NORM, "--arch", "sm_90", "--strategy", "genetic"), "unknown strategy 'genetic'; known: "),
        (("tune", RMS_NORM, "--arch", "sm_90", "--strategy", ""), "the name of the strategy is empty; known: "),
        (("inspect", RMS_NORM, "--arch", "sm_90a"), "write sm_90"),
        (("inspect", RMS_NORM, "--arch", " , "), "names no architecture; known: sm_80"),
        (("inspect", RMS_NORM, "--arch", "sm_90", "--config", "TILE_Q=1"),
         "unknown knob 'TILE_Q'; did you mean 'TILE_M'? known: TILE_M, BLOCKS_PER_SM"),
        (("inspect", RMS_NORM, "--arch", "sm_90", "--config", "TILE_M"), "not of the form knob=value"),
        (("inspect", RMS_NORM, "--arch", "sm_90", "--workload", "huge"), "unknown workload 'huge'; known: 16384x"),
        (("tune", RMS_NORM, "--arch", "sm_90", "--workload", "huge"), "unknown workload 'huge'; known: 16384x"),
        (("tune", RMS_NORM, "--l2", "hot"), "'hot' is not one of 'cold', 'warm'"),
        (("tune", RMS_NORM, "--tie-band", "7"), "--tie-band 7: must be between 0 and 1"),
        (("tune", RMS_NORM, "--jobs", "0"), "--jobs"),
        (("inspect",), "Missing argument 'FILE[:TASK]'"),
        (("inspect", RMS_NORM, "--colour"), "--colour"),
        (("inspekt", RMS_NORM), "inspekt"),
        (("inspekt", RMS_NORM), "no such command: inspekt; did you mean inspect?"),
        (("inspect", RMS_NORM, "--confg", "TILE_M=1"), "no such option: --confg; did you mean --config?"),
        (("inspect", RMS_NORM, "--arch", "sm90"), "did you mean 'sm_90'?"),
        (("inspect", RMS_NORM, "--arch", "sm_90", "--config", "TILEM=1"), "did you mean 'TILE_M'?"),
        (("tuned", "list", "--colour"), "see tilewright tuned list --help"),
        (("tuned", "lst"), "see tilewright tuned --help"),
        (("captured", "xyz"), "no such command: xyz; known: show, pairs, task, fuse; see tilewright captured --help"),
        (("lst",), "see tilewright --help"),
        (("tune", RMS_NORM, "--strategy"), "'--strategy' requires an argument; see tilewright tune --help"),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_wrong_request_is_one_line_with_the_choices(run: Run, arguments: tuple[str, ...], said: str) -> None:
    ran = run(*arguments)
    assert ran.code == 2 and said in ran.error
    assert ran.out == ""


def test_a_mistake_in_the_launch_is_said_without_a_traceback(run: Run, task_file: TaskFile) -> None:
    where = task_file("""
        def launch(x, y, N, config):
            return tw.Launch(scale, (N // 0,), (x, y, config.TILE))

        task = make(launch=launch)
    """)
    ran = run("inspect", where, "--arch", "sm_90", "--json")
    text = ran.out  # an error of the request, or each candidate's failure
    assert "ZeroDivisionError" in text and "Traceback" not in ran.err


def test_a_mistake_in_the_work_of_a_task_is_said(run: Run, task_file: TaskFile) -> None:
    ran = run("inspect", task_file("task = make(flops=lambda N: N / 0)"), "--arch", "sm_90", "--json")
    assert ran.code == 2 and "ZeroDivisionError" in ran.error


def test_whatever_comes_out_of_the_tasks_own_code_is_said_with_its_line(
    run: Run, task_file: TaskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = task_file("task = make(reference=lambda x: x.no_such_method())")
    monkeypatch.setattr(
        import_module("tilewright.inspect.inspect"), "inspect", lambda task, *_, **__: task.reference(1)
    )
    ran = run("inspect", where, "--arch", "sm_90")
    line = len(Path(where).read_text().splitlines())
    assert ran.code == 2 and f"ops.py:{line}: AttributeError" in ran.error


def test_a_kernel_that_does_not_compile_is_the_candidates_outcome(run: Run, task_file: TaskFile) -> None:
    where = task_file("""
        @ct.kernel
        def wrong(x, y, TILE: ct.Constant[int]):
            ct.store(y, (0,), no_such_name)

        task = make(launch=lambda x, y, config: tw.Launch(wrong, (1,), (x, y, config.TILE)))
    """)
    ran = run("inspect", where, "--arch", "sm_90", "--config", "TILE=256", "--json")
    (row,) = json.loads(ran.out)
    assert ran.code == 1 and row["status"] == "failed" and "no_such_name" in row["reason"]
    assert row["registers"] is None and row["predicted_us"] is None


# This machine cannot do it ------------------------------------------------------------------------


def test_a_missing_compiler_is_one_line_with_the_fix(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain._found.cache_clear()
    monkeypatch.setattr(toolchain, "_from_pip", lambda: None)
    monkeypatch.setattr(toolchain.shutil, "which", lambda *_, **__: None)
    try:
        for command in ("inspect", "tune"):
            ran = run(command, RMS_NORM, "--arch", "sm_90", *(ONE if command == "inspect" else ("--no-store",)))
            assert ran.code == 3 and "tileiras" in ran.error and "pip install" in ran.error
    finally:
        toolchain._found.cache_clear()


def test_a_wrong_cuda_home_does_no_harm(tmp_path: Path) -> None:
    if not toolchain.find_tileiras().from_pip:
        pytest.skip("only the pip compiler is shielded from CUDA_HOME")
    (tmp_path / "version.json").write_text('{"cuda": {"version": "12.4.1"}}')
    out, err = child("inspect", RMS_NORM, *ONE, "--arch", "sm_90", "--json", CUDA_HOME=str(tmp_path)).communicate()
    assert json.loads(out)[0]["status"] == "predicted", err
    out, _ = child("doctor", CUDA_HOME=str(tmp_path)).communicate()
    assert f"CUDA_HOME={tmp_path}(CUDA12.4)" in "".join(out.split()), "whatever the width"


@pytest.mark.parametrize(("number", "fix"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "choose a place")])
def test_a_place_that_cannot_be_written_is_one_line(
    run: Run, task_file: TaskFile, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/tmp/kernel.tileirbc")

    monkeypatch.setattr(Path, "write_bytes", full)
    where = task_file("task = make()")
    ran = run("inspect", where, "--arch", "sm_90", "--config", "TILE=256")
    assert ran.code == 3 and "/tmp/kernel.tileirbc" in ran.error and fix in ran.error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_one_line() -> None:
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))),
    }
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tilewright", "--version"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ, check=False)
    assert ran.returncode == 3 and ran.stderr.startswith("error: No space left on device")
    assert len(ran.stderr.splitlines()) == 1


def test_a_mistake_of_ours_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(where: str) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(loading, "load_task", broken)
    ran = run("inspect", RMS_NORM, "--arch", "sm_90")
    assert ran.code == exit_codes.OUR_MISTAKE == 70
    assert "Traceback" in ran.err and "RuntimeError: surprise" in ran.err
    assert ran.err.splitlines()[-1].startswith("error: this is a mistake in Tilewright")


def test_with_json_an_error_is_an_object_on_stdout(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its kind; an argument of the program that `run` starts is not ours."""
    for arguments, kind in (
        (("inspekt", "--json"), "request"),
        (("check", RMS_NORM, "--engine", "gpu", "--json"), "machine"),
    ):
        if kind == "machine" and detect() is not None:
            continue
        ran = run(*arguments)
        said = json.loads(ran.out)["error"]
        assert (said["kind"], said["exit_code"]) == (kind, ran.code)
        assert f"error: {said['message']}" in ran.err.splitlines()
    assert run("run", "./gone", "--json").out == ""


def test_every_way_to_end_has_its_code() -> None:
    assert list(exit_codes.EXIT_CODES) == [0, 1, 2, 3, 70, 130, 143]


# Ctrl-C -------------------------------------------------------------------------------------------


def compilers_in(folder: Path) -> list[str]:
    """The running programs whose command line names ``folder``, where the compiler has its files."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = entry.joinpath("cmdline").read_text().replace("\0", " ")
        except OSError:  # it ended while we looked
            continue
        if str(folder) in command and "tile" in command:
            found.append(command)
    return found


def received(process: int, number: int) -> bool:
    """Whether the process has no such signal pending any more."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True
    return not any(int(line.split()[1], 16) >> (number - 1) & 1 for line in status.splitlines() if "Pnd:" in line)


BACKGROUND = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""A shell starts a background job so: the job ignores Ctrl-C."""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize(
    ("command", "group", "number", "before"),
    [
        ("inspect", False, signal.SIGINT, ()),
        ("tune", True, signal.SIGINT, ()),
        ("tune", False, signal.SIGTERM, BACKGROUND),
        ("tune", True, signal.SIGTERM, ("nohup",)),
        ("inspect", False, signal.SIGTERM, ()),
        pytest.param("optimize", True, signal.SIGTERM, BACKGROUND, marks=pytest.mark.long),
    ],
    ids=[
        "inspect, from kill", "tune, from the terminal", "tune, in the background", "tune, nohup and the whole group",
        "inspect, SIGTERM", "optimize, in the background and the whole group",
    ],
)  # fmt: skip
def test_ctrl_c_while_compiling_is_one_line_and_leaves_no_compiler(
    command: str, group: bool, number: signal.Signals, before: tuple[str, ...], tmp_path: Path
) -> None:
    home, files = tmp_path / "home", tmp_path / "compiler"
    files.mkdir()
    process = child(command, MATMUL, "--arch", "sm_90", before=before, TILEWRIGHT_HOME=str(home), TMPDIR=str(files))
    try:
        assert until(lambda: compilers_in(files))
        if group:  # as a terminal, `timeout` or a batch system does; the second must not stop the clean-up
            os.killpg(process.pid, number)
            if number == signal.SIGTERM:
                until(lambda: received(process.pid, number))
                process.send_signal(number)
        else:
            process.send_signal(number)
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    what = "terminated" if number == signal.SIGTERM else "interrupted"
    part = {"tune": "workload", "optimize": "iteration"}.get(command)
    (said,) = [line for line in err.splitlines() if not re.match(r"note: |\w+ \d+( of \d+)? ", line)]
    nothing = f"no {part} was finished, the same command starts over"
    if kept := len(list(home.glob("ledger.compiled/*/*.json"))):
        candidates = f"{kept} compiled candidate{'s' * (kept > 1)}"
        nothing = f"no finished workloads and {candidates} are stored, run the same command to resume"
    assert said == (f"{what}; {nothing}" if part else what)
    assert until(lambda: not compilers_in(files)), compilers_in(files)
    left = lambda: list(files.glob("tilewright-*"))  # noqa: E731  (the keeper removes them after the process)
    assert until(lambda: left() == []), left()


@pytest.mark.parametrize(("fresh", "how"), [(False, "the same command"), (True, "the same command without --fresh")])
def test_an_interruption_says_what_is_stored_and_how_to_go_on(fresh: bool, how: str) -> None:
    """An earlier process may have finished what is stored; a run that is complete is not resumed."""

    def said(ledger: TuneLedger | Literal[False]) -> str:
        with pytest.raises(Interrupted) as error, cli_shared.resumable(ledger, fresh):
            raise Signalled(signal.SIGTERM)
        assert error.value.code == 143
        return str(error.value)

    with TuneLedger() as ledger, TuneLedger() as later:
        assert said(ledger) == "terminated; no workload was finished, the same command starts over"
        run = ledger.begin(tune_run(key="k")).run
        assert said(ledger) == "terminated; no workload was finished, the same command starts over"
        (made := ledger.compiled_of("k")).folder.mkdir(parents=True)
        made.folder.joinpath("a.json").touch()
        kept = "no finished workloads and 1 compiled candidate are stored"
        assert said(ledger) == f"terminated; {kept}, run {how} to resume"
        made.remove()
        ledger.save(run, tuned_workload("one"))
        assert said(ledger) == f"terminated; 1 finished workload is stored, run {how} to resume"
        ledger.save(run, tuned_workload("two"))
        assert later.resume("k")
        assert said(later) == f"terminated; 2 finished workloads are stored, run {how} to resume"
        ledger.finish(run, {})
        assert said(ledger) == f"terminated; the run is complete and stored, see it with tilewright report {run}"
    assert said(False) == "terminated; nothing is stored (--no-store)"


# What stdout cannot show --------------------------------------------------------------------------

LISTED = "import triton\nc = [triton.Config({'BLOCK_M': 64, 'μ': 1})]\n"


def test_what_stdout_lacks_has_a_stand_in(tmp_path: Path) -> None:
    path = tmp_path / "triton_.py"
    path.write_text(LISTED, encoding="utf-8")
    process = child("transfer", str(path), PYTHONIOENCODING="ascii")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "# renamed: BLOCK_M -> TILE_M" in out and "'?': 1" in out


def test_json_loses_nothing_where_stdout_lacks_it(tmp_path: Path) -> None:
    path = tmp_path / "triton_.py"
    path.write_text(LISTED, encoding="utf-8")
    out, err = child("transfer", str(path), "--json", PYTHONIOENCODING="ascii").communicate()
    assert json.loads(out)[0]["configurations"][0]["values"] == {"TILE_M": 64, "μ": 1}, err


def test_a_file_name_that_is_no_text_is_no_traceback(run: Run, tmp_path: Path) -> None:
    name = os.fsdecode(b"c\xff.py")
    (tmp_path / name).write_text("def f(:\n")
    shown = run("lint", name)
    assert shown.code == 1 and shown.out.startswith("c?.py:1:") and not shown.err
    assert json.loads(run("lint", name, "--json").out)["findings"][0]["file"] == name


def test_a_stdout_without_an_encoding_is_printed_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program has it that catches what `main` prints."""
    caught = io.StringIO()
    monkeypatch.setattr(sys, "stdout", caught)
    assert cli.main(["run", "--json", "µ"]) == 0
    assert json.loads(caught.getvalue())["command"] == ["µ"] and "µ" in caught.getvalue()


# Progress -----------------------------------------------------------------------------------------


def test_progress_in_a_file_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 1.0, 6.0, 7.0, 12.0])
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with terminal.progress(quiet=False) as progress:
        for done in range(1, 5):
            progress("compile", done, 4 if done < 4 else None, f"TILE={done}")
    assert capsys.readouterr().err == "compile 2 of 4 TILE=2\ncompile 4 TILE=4\n"


def test_progress_is_silent_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress(quiet=True) as progress:
        progress("compile", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_says_the_best_so_far(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.0)
    with terminal.progress(quiet=False) as progress:
        progress(BEST, 1, None, "12.5 µs by TILE=2")
        progress("race", 2, None)
    assert capsys.readouterr().err == "race 2; best so far: 12.5 µs by TILE=2\n"


def test_a_bar_says_the_time_that_is_left() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    clock = iter(range(100)).__next__
    stages = bars.stages(console, lambda: float(clock()))
    task = stages.add_task("compile", total=40)
    for done in range(1, 11):
        stages.update(task, completed=done)
    stages.note, stages.best = "a_workload TILE_M=128,TILE_N=128,TILE_K=64,num_worker_warps=8", "12.5 µs by TILE=2"
    shown = Console(file=io.StringIO(), width=80)
    for line in stages.get_renderables():
        shown.print(line)
    assert isinstance(shown.file, io.StringIO)
    text = shown.file.getvalue()
    assert re.search(r"compile .* 10/40 \d+ s, about \d+ (s|min) left *\n", text), text
    assert stages.note in text and "best so far: 12.5 µs by TILE=2" in text and max(map(len, text.splitlines())) <= 80


def test_progress_on_a_terminal_is_a_bar_that_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with terminal.progress(quiet=False) as progress:
        progress("compile", 1, 2, "[TILE=1]")
        progress("race", 10, None)
        progress("compile", 2, 2)
