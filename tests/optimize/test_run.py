"""`optimize` without a GPU, end to end: real git, ledger, compiler and interpreter; one run is shared.

P-02, P-14, P-18, F-1, F-2, X-12, X-15 of the requirements; what `--json` promises; `kill -9` and after.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.test_perf_results import parse
from tests.optimize.kit import SCALE, git, repository

from tilewright.cli import optimize_table as optimize_tables
from tilewright.errors import RequestError, StorageError, TaskError, UnknownChoice
from tilewright.ledger.ledger import Ledger
from tilewright.optimize import attempting
from tilewright.optimize.gates.base import VariantChecker
from tilewright.optimize.loop import optimize
from tilewright.optimize.optimized import Optimized, to_json
from tilewright.optimize.options import Options
from tilewright.optimize.versions.workspace import Workspace
from tilewright.records import MachineCode, PredictedTime
from tilewright.report.report import report
from tilewright.verify.cases import Case

ROOT = Path(__file__).parents[2]

STEEP = (
    SCALE.replace('{"TILE": (256,)}', '{"TILE": (16, 1024)}')
    .replace('{"TILE": 256}', '{"TILE": 16}')
    .replace('{"N": 4096}', '{"N": 1 << 18}')
)
"""A tile so small that a larger one is predicted to be much faster."""
OPTIONS = Options(iterations=2, only=("tile_sizes", "worker_warps"), seconds=60)
ARGUMENTS = (
    "--arch", "sm_90", "--seed", "1", "--iterations", "2", "--only", "tile_sizes", "--only", "worker_warps",
    "--budget", "60",
)  # fmt: skip

PROMISED = {"run", "measured", "baseline", "final", "kept", "stop_reason", "iterations"}
PROMISED_OF_ITERATIONS = {
    "n", "optimization", "site", "correctness", "status", "latency_ms", "interval", "reason",
}  # fmt: skip


def snapshot(folder: Path) -> dict[str, Any]:
    """All that a user could miss: every file's bytes, the index, the stash and the refs that are theirs."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }
    return {
        "files": files,
        "index": (folder / ".git" / "index").read_bytes(),
        "head": (folder / ".git" / "HEAD").read_bytes(),
        "main": git(folder, "rev-parse", "main"),
        "status": git(folder, "status", "--porcelain"),
        "stash": git(folder, "stash", "list"),
    }


@dataclass(frozen=True)
class Shared:
    """One predicted run on a checkout with changes of the user's."""

    file: Path
    home: Path
    before: dict[str, Any]
    after: dict[str, Any]
    result: Optimized


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    folder = tmp_path_factory.mktemp("optimizing")
    file = repository(folder / "user", STEEP)
    for name, text in (("staged.txt", "one\n"), ("dirty.txt", "two\n")):
        (file.parent / name).write_text(text)
        git(file.parent, "add", name)
    git(file.parent, "commit", "--quiet", "--message=more")
    (file.parent / "staged.txt").write_text("staged\n")
    git(file.parent, "add", "staged.txt")
    (file.parent / "dirty.txt").write_text("dirty\r\n")
    (file.parent / "untracked.txt").write_text("untracked\n")
    file.write_text(STEEP + "# not committed yet\n")
    before, home = snapshot(file.parent), folder / "home"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TILEWRIGHT_HOME", str(home))
        result = optimize(str(file), arch="sm_90", options=OPTIONS, seed=1)
    return Shared(file, home, before, snapshot(file.parent), result)


def test_the_user_s_tree_and_index_stay_byte_for_byte(shared: Shared) -> None:
    """X-15: dirty, staged and untracked files too."""
    assert shared.after == shared.before


def test_something_is_kept_and_lies_on_a_branch_of_its_own(shared: Shared) -> None:
    """P-02, F-2: over the files as they are on disk, one commit a kept change."""
    record, folder = shared.result.record, shared.file.parent
    assert shared.result.kept and (shared.result.speedup or 0) > 1.05
    assert re.fullmatch(r"cutile-perf-scale-\d{4}-\d\d-\d\d", str(record.branch))
    assert str(record.branch).endswith(str(datetime.date.fromisoformat(record.started[:10])))
    commits = git(folder, "rev-list", f"{record.base_commit}..{record.branch}").split()
    assert commits == [one.commit for one in reversed(shared.result.kept)]
    assert git(folder, "show", f"{record.base_commit}:ops.py") == STEEP + "# not committed yet\n"
    assert git(folder, "worktree", "list").count("\n") == 1, "the worktree is gone"


def test_the_patch_applies_to_what_is_on_disk(shared: Shared, tmp_path: Path) -> None:
    copy = tmp_path / "ops.py"
    copy.write_bytes(shared.file.read_bytes())
    patch = shared.result.folder / "changes.patch"
    assert patch.read_text() == shared.result.patch != ""
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    record = shared.result.record
    assert copy.read_text() == git(shared.file.parent, "show", f"{record.branch}:ops.py")


def test_nothing_in_it_claims_to_be_measured(shared: Shared) -> None:
    record = shared.result.record
    assert not record.measured and record.machine.gpu is None
    for one in shared.result.iterations:
        assert one.latency_ms is None and one.interval_ms is None and one.predicted_ms is not None
        assert all(found.measured is None and found.ratio is None for found in one.outcomes)
        assert one.n == 0 or "predict" in one.reason
    assert all(one.measured is None and one.predicted for one in (*record.baseline, *record.final))


def test_the_table_is_called_predicted(shared: Shared) -> None:
    """F-1: `perf_results.md` holds measured times alone."""
    folder = shared.result.folder
    assert not (folder / "perf_results.md").exists()
    rows = parse((folder / "perf_predicted.md").read_text())
    assert [one.iteration for one in rows] == [0, 1, 2]


def test_the_object_has_the_promised_names(shared: Shared) -> None:
    found = json.loads(json.dumps(to_json(shared.result), allow_nan=False))
    assert found.keys() >= PROMISED
    assert found["measured"] is False and found["note"] == "predicted, not measured"
    assert found["run"] == shared.result.record.run and found["stop_reason"]
    assert found["kept"] == [one.optimization for one in shared.result.kept]
    assert [one["n"] for one in found["iterations"]] == [0, 1, 2]
    for one in found["iterations"]:
        assert one.keys() >= PROMISED_OF_ITERATIONS
        assert one["latency_ms"] is None and one["interval"] is None
        assert one["correctness"] in ("PASS", "FAIL", "unverified")
        assert one["status"] in ("keep", "revert", "crash")
    for part in ("baseline", "final"):
        (only,) = found[part].values()
        assert only["us"] is None and only["predicted_us"] > 0
    assert found["baseline"]["small"]["predicted_us"] / found["final"]["small"]["predicted_us"] == pytest.approx(
        found["speedup"]
    )


def test_the_ending_names_the_command_for_a_gpu(shared: Shared) -> None:
    lines = list(optimize_tables.ending(shared.result, str(shared.file)))
    assert lines[-1].startswith("predicted, not measured. On a machine with a GPU: tilewright optimize ")
    assert any("(predicted, not measured)" in line for line in lines[:-1])
    confirm = shared.result.record.confirm.split()
    assert confirm[:2] == ["tilewright", "optimize"] and "--arch" not in confirm
    assert "--arch" in shared.result.record.reproduce


def test_the_ledger_has_it_all(shared: Shared) -> None:
    with Ledger(shared.home / "ledger.db") as ledger:
        assert ledger.run("latest") == shared.result.record
        assert ledger.iterations("latest") == shared.result.iterations
    assert all(one.attempts and one.why_chosen for one in shared.result.iterations[1:])
    assert all(one.diff and one.comparison and one.commit for one in shared.result.iterations[1:])


def test_what_earlier_runs_kept_is_known_to_the_next(shared: Shared) -> None:
    with Ledger(shared.home / "ledger.db") as ledger:
        seen = ledger.history(measured=False, arch="sm_90", kind=shared.result.record.kind)
        assert {one.entry for one in shared.result.iterations[1:]} == seen.keys()
        assert not ledger.history(measured=True)


# Interrupted ----------------------------------------------------------------------------------------


KILLED = """
import os, signal, sys
from tilewright.__main__ import main
from tilewright.ledger.ledger import Ledger
append = Ledger.append
def killed(ledger, run, iteration):
    if iteration.n == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    append(ledger, run, iteration)
Ledger.append = killed
sys.exit(main())
"""
"""`tilewright`, killed when its second iteration is about to be recorded."""


def child(
    file: Path, home: Path, *arguments: str, program: Sequence[str] = ("-m", "tilewright"), **variables: str
) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TILEWRIGHT_HOME": str(home), **variables}
    return subprocess.Popen(
        [sys.executable, *program, "optimize", str(file), *ARGUMENTS, *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        cwd=file.parent,
    )  # fmt: skip


@pytest.mark.long  # test_loop.py interrupts runs, test_loading.py kills a process while it builds versions
@pytest.mark.skipif(os.name != "posix", reason="kills with a signal")
def test_kill_9_loses_at_most_the_running_iteration(tmp_path: Path) -> None:
    """X-12: the same command goes on with the same run, without a gap and without trying anything twice."""
    file, home = repository(tmp_path / "user", STEEP), tmp_path / "home"
    process = child(file, home, program=("-c", KILLED))
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    with Ledger(home / "ledger.db") as ledger:
        (killed,) = ledger.runs()
        before = ledger.iterations(killed.run)
    assert killed.finished is None and len(before) == 2
    out, err = child(file, home, "--json").communicate()
    found = json.loads(out)
    assert found["run"] == killed.run, err
    assert f"note: resuming run {killed.run}: 1 of 2 iterations are done" in err.splitlines()
    assert [one["n"] for one in found["iterations"]] == [0, 1, 2]
    with Ledger(home / "ledger.db") as ledger:
        (finished,) = ledger.runs()
        after = ledger.iterations(killed.run)
    assert finished.finished is not None and after[:2] == before
    assert (after[2].entry, after[2].site) != (after[1].entry, after[1].site)
    assert file.read_text() == STEEP and git(file.parent, "status", "--porcelain") == ""
    assert [one.status for one in after] == [one["status"] for one in found["iterations"]]


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="kills with a signal")
def test_a_version_whose_loading_the_process_did_not_survive_is_not_loaded_again(tmp_path: Path) -> None:
    """Issue 13: `loading version n` is in the ledger before it is loaded; the resumed run records the failure."""
    file, home, scratch = repository(tmp_path / "user", SCALE), tmp_path / "home", tmp_path / "scratch"
    scratch.mkdir()
    hangs, fine = tmp_path / "hangs.py", tmp_path / "fine.py"
    hangs.write_text(SCALE + 'import time\nopen("begun", "w").close()\ntime.sleep(600)\n')
    fine.write_text(SCALE.replace("* 2)", "+ ct.load(x, (i,), (TILE,)))"))
    changes = ("--change", str(hangs), "--change", str(fine))
    process = child(file, home, *changes, TMPDIR=str(scratch))
    deadline = time.monotonic() + 300
    while not any("begun" in files for _, _, files in os.walk(scratch)):  # folders may vanish meanwhile
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    out, err = child(file, home, "--json", *changes).communicate()
    first, second = json.loads(out)["iterations"][1:3]
    assert (first["site"], first["status"]) == ("hangs.py", "crash"), err
    assert re.fullmatch(r"does not load: the process was killed while it loaded this version \(.*\)", first["reason"])
    assert second["site"] == "fine.py" and second["correctness"] == "PASS"
    with sqlite3.connect(home / "ledger.db") as connection:
        events: dict[str, list[str]] = {}
        for version, event in connection.execute("SELECT version, event FROM loads ORDER BY number"):
            events.setdefault(version, []).append(event)
    assert [*events.values()] == [["loading"], ["loading", "ended"]]


def test_a_kept_change_that_the_workspace_missed_is_kept_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the ledger and git: the ledger is written first, and what it says is done."""
    file = repository(tmp_path / "user", STEEP)
    options = Options(iterations=1, only=("tile_sizes",), seconds=60)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Workspace, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            optimize(str(file), arch="sm_90", options=options, seed=1)
    found = optimize(str(file), arch="sm_90", options=options, seed=1)
    (kept,) = found.kept
    assert [one.n for one in found.iterations] == [0, 1]
    assert git(file.parent, "rev-parse", str(found.record.branch)).strip() == kept.commit
    assert found.patch.strip() == kept.diff.strip() and (found.speedup or 0) > 1.05


def test_a_change_that_was_edited_since_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, change = repository(tmp_path / "user", SCALE), tmp_path / "change.py"
    keys = []

    def stop(key: str, ledger: Ledger) -> None:
        keys.append(key)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "resume", lambda self, key: stop(key, self))
    for text in (SCALE + "# one\n", SCALE + "# two\n", SCALE + "# two\n"):
        change.write_text(text)
        with pytest.raises(KeyboardInterrupt):
            optimize(str(file), arch="sm_90", seed=1, options=Options(changes=(change,)))
    assert keys[0] != keys[1] == keys[2]


# At the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"), [((), (7,)), ((7,), (7,)), ((7,), (7, 8))],
    ids=["the change", "the untouched code too", "the untouched code elsewhere"],
)  # fmt: skip
def test_what_is_wrong_on_hostile_shapes_is_taken_back_unless_the_untouched_code_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    def wrong_cases(self: VariantChecker, variant: Any, case: Case | None = None) -> dict[Case, str]:
        untouched = 'TILE": 16}' in next(iter(variant.texts.values()))
        wrong = {Case((("N", place),)): f"y[{place}] is 3 for N = 1" for place in (before if untouched else after)}
        return {each: reason for each, reason in wrong.items() if case in (None, each)}

    monkeypatch.setattr(VariantChecker, "wrong_cases", wrong_cases)
    file = repository(tmp_path / "user", STEEP)
    found = optimize(str(file), arch="sm_90", seed=1, options=Options(iterations=1, only=("tile_sizes",), seconds=60))
    if before != after:
        assert [one.status for one in found.iterations] == ["keep", "keep", "revert"]
        assert f"y[{after[-1]}] is 3" in found.iterations[2].reason
        assert not found.kept and found.patch == "" and to_json(found)["kept"] == []
        assert found.speedup == pytest.approx(1.0)
    else:
        assert len(found.kept) == 1 and found.patch
        assert "the untouched code is not correct" in str(found.record.stop_reason)


def test_untouched_code_that_is_wrong_is_one_clear_line(tmp_path: Path) -> None:
    file = repository(tmp_path / "user", SCALE.replace("(TILE,)) * 2", "(TILE,)) * 3"))
    with pytest.raises(RequestError, match="the untouched code of task 'scale' is not correct"):
        optimize(str(file), arch="sm_90", seed=1, options=OPTIONS)
    assert git(file.parent, "branch", "--list").split() == ["*", "main"]


def test_without_a_repository_there_is_a_private_one(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "ops.py").write_text(STEEP)
    found = optimize(
        str(folder / "ops.py"), arch="sm_90", seed=1, options=Options(iterations=1, only=("tile_sizes",), seconds=60)
    )
    assert [path.name for path in folder.iterdir()] == ["ops.py"], "nothing is left beside the user's file"
    assert found.kept and (folder / "ops.py").read_text() == STEEP
    (private,) = (tmp_path / "tilewright-home" / "repositories").glob("scale-*")
    assert (
        git(private, "--git-dir", str(private), "rev-parse", str(found.record.branch)).strip() == found.kept[-1].commit
    )


def test_a_task_object_is_the_task_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program has it that imports the task: no ``file``, no ``edit``."""
    file = repository(tmp_path / "user", STEEP.replace("task =", "steep ="), name="steep_ops.py")
    monkeypatch.syspath_prepend(file.parent)
    task = importlib.import_module("steep_ops").steep
    found = optimize(task, arch="sm_90", seed=1, options=Options(only=("tile_sizes",), seconds=60), iterations=1)
    assert str(found).startswith(f"{task.name}: ") and str(found).endswith("1 of 1 change kept")
    assert found.record.where == f"{file}:scale"
    with pytest.raises(TaskError, match="'scale' is in no file"):
        optimize(replace(task, launch=eval("lambda: None")), arch="sm_90", options=OPTIONS)


def test_a_home_that_cannot_be_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = repository(tmp_path / "user", STEEP)
    for name in ("runs", "worktrees"):
        home = tmp_path / name
        home.mkdir()
        (home / name).write_text("mine")
        monkeypatch.setenv("TILEWRIGHT_HOME", str(home))
        with pytest.raises(StorageError, match=rf"^cannot use {home}.*; fix: set TILEWRIGHT_HOME to "):
            optimize(str(file), arch="sm_90", seed=1, options=OPTIONS)


@pytest.mark.parametrize("changes", [{"iterations": -1}, {"patience": 0}, {"minutes": 0.0}, {"stop_after": -1.0}])
def test_options_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="iterations and stop_after must be 0 or more"):
        Options(**changes)


def test_an_unknown_entry_names_those_that_there_are() -> None:
    with pytest.raises(UnknownChoice, match="unknown policy 'bold'; known: default, base"):
        Options(policy="bold")  # type: ignore[arg-type]
    with pytest.raises(UnknownChoice, match=r"unknown entry 'Q9'; known: .*\bswizzle\b"):
        Options(only=("Q9",))


# Kept only beyond the errors of predictions ----------------------------------------------------------

GATHERS = """import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def scale(x, y, N: ct.Constant[int], TILE: ct.Constant[int]):
    at = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    ct.scatter(y, at, ct.gather(x, at, check_bounds=True) * 2.0, check_bounds=True)


def launch(x, y, N, config):
    return tw.Launch(scale, (-(-N // config.TILE),), (x, y, N, config.TILE))


task = tw.Task(
    name="scale",
    launch=launch,
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x,
    flops=lambda N: N,
    space=tw.Space(constants={"TILE": (256,)}, shipped={"TILE": 256}),
    workloads={"small": {"N": 1 << 16}},
)
"""

GELU = """import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def gelu(x, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    v = ct.astype(ct.load(x, (i, j), (TILE_M, TILE_N)), ct.float32)
    inner = 0.7978845608 * (v + 0.044715 * v * v * v)
    ct.store(y, (i, j), ct.astype(0.5 * v * (1.0 + ct.tanh(inner)), x.dtype))


def launch(x, y, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(gelu, grid, (x, y, config.TILE_M, config.TILE_N))


task = tw.Task(
    name="gelu",
    launch=launch,
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    flops=lambda M, N: 10 * M * N,
    space=tw.Space(
        constants={"TILE_M": (8, 16, 32, 64), "TILE_N": (16, 32, 64, 128)}, shipped={"TILE_M": 64, "TILE_N": 64}
    ),
    workloads={"large": {"M": 1024, "N": 1024}},
)
"""


def never_kept(text: str, tmp_path: Path, *entries: str) -> Optimized:
    file = repository(tmp_path / "user", text)
    options = Options(iterations=2, only=entries, seconds=60)
    return optimize(str(file), arch="sm_90", options=options, seed=1)


@pytest.mark.long
def test_a_change_of_form_is_never_kept_on_a_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the model promises; it is listed with its patch and a command that works."""
    untouched: list[str] = []

    def promising(code: MachineCode, *_: object) -> PredictedTime:
        untouched.append(code.code_hash)
        return PredictedTime(100.0 if code.code_hash == untouched[0] else 10.0, "made up")

    monkeypatch.setattr(attempting, "predict", promising)
    found = never_kept(GATHERS, tmp_path, "tile_load")
    changes = found.to_confirm
    assert not found.kept and found.patch == "" and changes, [each.reason for each in found.iterations]
    (n, name, change) = changes[0]
    assert change.kind == "form" and change.speedup == pytest.approx(10.0)
    assert found.iterations[n].status == "revert" and found.iterations[n].correctness == "PASS"
    assert "not kept on a prediction: confirm it on a GPU" in found.iterations[n].reason
    with Ledger() as ledger:
        assert ledger.iterations("latest")[n].to_confirm == change
    shown = "\n".join(optimize_tables.ending(found, "ops.py"))
    assert f"{name}: predicted 10.00× (typical error: a factor of 2)" in shown and change.command in shown
    listed = json.loads(json.dumps(to_json(found), allow_nan=False))["to_confirm"]
    assert listed[0]["patch"] == change.patch and listed[0]["command"] == change.command and listed[0]["kind"] == "form"
    evidence = report("latest")
    for view in (evidence.markdown(), evidence.html()):
        assert "Candidates to confirm on a GPU" in view and Path(change.patch).name in view
    assert f"{name}: waits" in evidence.markdown() and ">waits</span>" in evidence.html()
    # the command, on this machine: for another architecture, because there is no GPU
    words = shlex.split(change.command)
    assert words[:2] == ["tilewright", "optimize"] and words[3:] == ["--change", change.patch]
    ran = subprocess.run(
        [sys.executable, "-m", *words, "--arch", "sm_90", "--iterations", "1", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (_, tried) = json.loads(ran.stdout)["iterations"]
    assert tried["entry"] == "proposed" and tried["correctness"] == "PASS", tried


STORE = "    ct.scatter(y, at, ct.gather(x, at, check_bounds=True) * 2.0, check_bounds=True)\n"
"""The line of `GATHERS` that stores."""
ATOMIC = "    ct.atomic_xchg(y, at, ct.gather(x, at, check_bounds=True) * 2.0, check_bounds=True)\n"
"""The same as an atomic. Blocks with atomics cannot be checked alone."""


@pytest.fixture
def promising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is predicted to be ten times as fast."""
    untouched: list[str] = []

    def predict(code: MachineCode, *_: object) -> PredictedTime:
        untouched.append(code.code_hash)
        return PredictedTime(100.0 if code.code_hash == untouched[0] else 10.0, "made up")

    monkeypatch.setattr(attempting, "predict", predict)


@pytest.mark.usefixtures("promising")
def test_a_change_that_cannot_be_checked_at_full_size_is_not_kept(tmp_path: Path) -> None:
    """The untouched code can be. The change stores with atomics."""
    change = tmp_path / "atomics.py"
    change.write_text(GATHERS.replace(STORE, STORE + ATOMIC))
    file = repository(tmp_path / "user", GATHERS)
    options = Options(iterations=1, changes=(change,), only=("tile_load",), seconds=60)
    found = optimize(str(file), arch="sm_90", options=options, seed=1)
    tried = found.iterations[1]
    assert not found.kept and tried.correctness == "PASS" and tried.status == "revert"
    assert "correct on reduced shapes" in tried.reason and "(atomics)" in tried.reason
    assert [n for n, _, _ in found.to_confirm] == [1], "a GPU can run it"


@pytest.mark.usefixtures("promising")
@pytest.mark.parametrize(("atomic_from", "kept"), [(512, False), (0, True)])
def test_other_tiles_are_kept_on_reduced_shapes_only_if_the_untouched_code_is_too(
    atomic_from: int, kept: bool, tmp_path: Path
) -> None:
    """From ``atomic_from`` elements a tile, the kernel stores with atomics."""
    text = GATHERS.replace(STORE, f"{STORE}    if TILE >= {atomic_from}:\n    {ATOMIC}")
    text = text.replace('{"TILE": (256,)}', '{"TILE": (256, 512)}')
    file = repository(tmp_path / "user", text)
    options = Options(iterations=1, only=("tile_sizes",), seconds=60)
    found = optimize(str(file), arch="sm_90", options=options, seed=1)
    tried = found.iterations[1]
    assert tried.correctness == "PASS" and "correct on reduced shapes" in tried.reason, tried.reason
    assert "(atomics)" in tried.reason and tried.status == ("keep" if kept else "revert")
    assert [n for n, _, _ in found.to_confirm] == ([] if kept else [1])


@pytest.mark.long
def test_tiles_of_a_gelu_do_not_shrink_to_16(tmp_path: Path) -> None:
    """A run without a GPU left 16×16 tiles on the branch."""
    found = never_kept(GELU, tmp_path, "tile_sizes")
    assert '"TILE_M": 16' not in found.patch and '"TILE_N": 16' not in found.patch, found.patch
