"""`tilewright optimize` as a person and a script use it: a small run, what it says, and every mistake one can make."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.optimize.kit import SCALE, git, repository
from tests.optimize.test_run import ARGUMENTS, PROMISED, PROMISED_OF_ITERATIONS, ROOT, STEEP
from tests.processes import until

from tilewright.cli import main as cli
from tilewright.cli import optimize as cli_optimize
from tilewright.ledger.ledger import Ledger
from tilewright.optimize import decide
from tilewright.optimize import options as optimizing
from tilewright.optimize.proposing.asked import Propose
from tilewright.race.rules import Policy


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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        code = cli.main(arguments)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return repository(tmp_path / "user", STEEP)


def test_the_help_has_an_example_and_the_defaults_that_the_functions_have(run: Run) -> None:
    ran = run("optimize", "--help")
    assert ran.code == 0 and "Example: tilewright optimize" in ran.out
    for option in (
        "--policy",
        "--iterations",
        "--minutes",
        "--stop-after",
        "--patience",
        "--allow-lossy",
        "--change",
        "--only",
        "--propose",
        "--propose-only",
    ):
        assert option in ran.out
    usual = optimizing.Options()
    assert cli_optimize.DEFAULT_ITERATIONS == usual.iterations == optimizing.ITERATIONS
    assert cli_optimize.DEFAULT_MINUTES == usual.minutes == optimizing.MINUTES
    assert cli_optimize.DEFAULT_PATIENCE == usual.patience == decide.PATIENCE
    proposer = Propose("x")
    assert (
        proposer.seconds, proposer.attempts, proposer.failures,
    ) == (cli_optimize.ANSWER_SECONDS, cli_optimize.PROPOSALS, cli_optimize.FAILURES)  # fmt: skip
    assert (Policy().l2, Policy().launch) == ("cold", "graph")


def test_a_run_says_what_it_did_and_a_report_of_it_can_be_had(run: Run, file: Path, tmp_path: Path) -> None:
    ran = run("optimize", str(file), *ARGUMENTS)
    assert ran.code == 0, ran.err
    lines = [line for line in ran.err.splitlines() if re.match(r" +\d+  ", line)]
    assert [int(line.split()[0]) for line in lines] == [0, 1, 2], "a line stays for each iteration"
    for words in ("predicted ms", "tile sizes", "predicted, not measured", "stopped: 2 iterations", "branch cutile"):
        assert words in ran.out
    assert "measured ms" not in ran.out
    told = run("report", "latest", "--markdown", "-", "--patch", str(tmp_path / "faster.patch"))
    assert told.code == 0, told.err
    assert "tile sizes" in told.out and "predicted" in told.out
    subprocess.run(["git", "apply", "--check", str(tmp_path / "faster.patch")], cwd=file.parent, check=True)


def test_json_is_one_object_on_stdout_and_nothing_else(run: Run, tmp_path: Path) -> None:
    """Also where the task file prints."""
    file = repository(tmp_path / "user", STEEP + 'print("hello from the task")\n')
    ran = run("optimize", str(file), *ARGUMENTS, "--json")
    found = json.loads(ran.out)
    assert ran.code == 0 and found.keys() >= PROMISED and found["measured"] is False
    assert all(one.keys() >= PROMISED_OF_ITERATIONS for one in found["iterations"])
    assert "hello from the task" in ran.err


def test_no_iterations_is_a_run_too(run: Run, tmp_path: Path) -> None:
    file = repository(tmp_path / "user", SCALE)
    ran = run("optimize", str(file), "--arch", "sm_90", "--iterations", "0", "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["kept"], found["stop_reason"].split(";")[0]) == (0, [], "0 iterations (--iterations)")


LOAD = "ct.load(x, (i,), (TILE,))"
BUSY = SCALE.replace(f"{LOAD} * 2", f"ct.exp({LOAD}) * 0 + {LOAD} * 2").replace('"N": 4096', '"N": 1 << 25')


def test_the_run_ends_with_the_limit_and_what_became_of_each_move(run: Run, tmp_path: Path) -> None:
    file = repository(tmp_path / "user", BUSY)
    ran = run("optimize", str(file), "--arch", "sm_90", "--only", "tile_sizes", "--only", "occupancy", "--only",
              "latency", "--iterations", "1")  # fmt: skip
    assert ran.code == 0 and "limit of small: " in ran.out and "of the speed of light, limited by" in ran.out
    (again,) = json.loads(run("report", "latest", "--jsonl", "-").out.splitlines()[0])["final"]
    found = again["diagnosis"]
    assert found["rung"] == "machine code and predicted time" and found["limit"]["evidence"]
    outcomes = {move["entry"]: move["outcome"] for move in found["moves"]}
    assert outcomes and all(
        words.startswith(("kept", "reverted", "waits", "failed", "not possible", "not tried", "does not apply"))
        for words in outcomes.values()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "Q9"), "unknown entry 'Q9'; known: tile_load, "),
        (("--only", "exp2"), "exp2 rounds differently; allow it with --allow-lossy, or leave out --only exp2"),
        (("--only", "tile_load", "--only", "exp2", "--dry-run"), "exp2 rounds differently; allow it"),
        (("--workload", "huge"), "unknown workload 'huge'; known: small"),
        (("--change", "nowhere.patch"), "nowhere.patch: no such file"),
        (("--arch", "sm_1"), "unknown architecture 'sm_1'"),
        (("--propose", "no-such-program"), "--propose no-such-program: no-such-program cannot be started"),
        (("--propose-only",), "--propose-only needs --propose COMMAND"),
        (("--propose", "no-such-program", "--dry-run"), "--propose no-such-program: no-such-program cannot be started"),
        (("--propose", "/"), "/ cannot be started: it is a folder"),
        (("--test", ""), "--test is empty; give a command"),
        (("--test", "no-such-program", "--dry-run"), "--test: no-such-program cannot be started"),
        (("--change", ""), "Invalid value for '--change': the path is empty"),
    ],
)
def test_a_wrong_choice_is_one_line_with_the_right_ones(
    run: Run, file: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = run("optimize", str(file), "--arch", "sm_90", *arguments)
    assert (ran.code, ran.out) == (2, "") and said in ran.error
    assert git(file.parent, "branch", "--list").split() == ["*", "main"], "nothing was begun"


def test_a_file_without_a_task_is_one_line(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    for where, said in ((str(empty), "holds no task"), (str(tmp_path / "nowhere.py"), "no such task file")):
        ran = run("optimize", where, "--arch", "sm_90")
        assert ran.code == 2 and said in ran.error


def test_options_out_of_range_are_refused(run: Run, file: Path) -> None:
    for arguments in (("--iterations", "-1"), ("--patience", "0"), ("--minutes", "0"), ("--policy", "bold")):
        ran = run("optimize", str(file), *arguments)
        assert ran.code == 2 and arguments[0] in ran.error


def test_untouched_code_that_is_wrong_is_one_line(run: Run, tmp_path: Path) -> None:
    file = repository(tmp_path / "user", SCALE.replace("(TILE,)) * 2", "(TILE,)) * 3"))
    ran = run("optimize", str(file), "--arch", "sm_90", "--seed", "1")
    assert ran.code == 1 and "the untouched code of task 'scale' is not correct" in ran.error


def test_the_worker_that_was_started_early_ends_with_a_wrong_choice(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    class Early:
        def __enter__(self) -> Early:
            return self

        def __exit__(self, *_: object) -> None:
            ended.append(True)

    monkeypatch.setattr("tilewright.executors.local.local", lambda process: Early())
    assert run("optimize", str(file), "--only", "Q9").code == 2
    assert ended


def begun(home: Path) -> bool:
    """Whether a run stands in the ledger."""
    if not (home / "ledger.db").exists():
        return False
    with Ledger(home / "ledger.db") as ledger:
        return bool(ledger.runs())


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_says_that_the_same_command_goes_on(file: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TILEWRIGHT_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tilewright", "optimize", str(file), *ARGUMENTS],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert until(lambda: begun(home) or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole foreground group
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, err
    how = "no iteration was finished, the same command starts over"
    later = r"\d finished iterations? (is|are) stored, run the same command to resume"  # on a machine that stalls
    assert re.fullmatch(f"interrupted; ({how}|{later})", err.splitlines()[-1])
    assert "Traceback" not in err
    with Ledger(home / "ledger.db") as ledger:
        assert all(one.finished is None for one in ledger.runs())
    assert git(file.parent, "worktree", "list").count("\n") == 1, "the worktree is gone"


def test_a_named_entry_that_does_not_ease_the_limit_says_why_it_was_not_tried(run: Run, tmp_path: Path) -> None:
    file = repository(tmp_path / "user", BUSY)
    named = ("optimize", str(file), "--arch", "sm_90", "--only", "unfuse")
    why = "unfuse: does not apply here: its machine code spills no registers"
    ran = run(*named)
    assert ran.code == 0 and why in " ".join(ran.out.split())
    dry = run(*named, "--dry-run")
    assert f"left out: {why}\n0 proposals for " in dry.out
