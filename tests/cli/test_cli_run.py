"""`tilewright run`: the program runs as without it, and its exit code, output and signals are its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tilewright.cli import run as cli_run
from tilewright.errors import RequestError
from tilewright.runtime.started import STARTUP

ROOT = Path(__file__).parents[2]

APP = (
    "import typer; from tilewright.cli import run as cli_run; app = typer.Typer(); "
    "app.command(context_settings=cli_run.SETTINGS)(cli_run.run); app.callback()(lambda: None); app()"
)


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), **more}
    return subprocess.run(
        [sys.executable, "-c", APP, "run", *arguments], env=environment, capture_output=True, text=True
    )


def test_the_program_runs_with_its_arguments_and_the_patch() -> None:
    code = (
        "import sys, cuda.tile as ct; print(sys.argv[1:], hasattr(ct.tune.exhaustive_search, '__wrapped__'));"
        "sys.exit(7)"
    )
    shown = run("--", sys.executable, "-c", code, "--steps", "3")
    assert (shown.stdout, shown.stderr, shown.returncode) == ("['--steps', '3'] True\n", "", 7)


def test_any_executable() -> None:
    shown = run("--widen", "--mode", "stored", "--", "env")
    lines = shown.stdout.splitlines()
    assert {"TILEWRIGHT_PATCH=1", "TILEWRIGHT_WIDEN=1", "TILEWRIGHT_TUNING=stored"} <= set(lines)
    assert f"PYTHONPATH={STARTUP}{os.pathsep}{ROOT / 'src'}" in lines


def test_options_after_the_program_are_its_own() -> None:
    shown = run(sys.executable, "-c", "import sys; print(sys.argv[1:])", "--json", "--widen")
    assert shown.stdout == "['--json', '--widen']\n"


def test_a_signal_is_the_programs() -> None:
    shown = run("--", sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert shown.returncode == -signal.SIGTERM


def test_an_unknown_mode_is_refused_before_the_program_starts() -> None:
    shown = run("--", sys.executable, "-c", "print('started')", TILEWRIGHT_TUNING="late")
    assert shown.stdout == "" and "TILEWRIGHT_TUNING=late is no mode; known: now |" in shown.stderr


def test_no_such_program() -> None:
    shown = run("--", "/no/such/program")
    assert (shown.stderr, shown.returncode) == ("error: no such program: /no/such/program\n", 127)


@pytest.mark.parametrize("as_json", [False, True])
def test_an_empty_name_is_one_line(as_json: bool) -> None:
    """``tilewright run "$PYTHON" train.py`` with the variable unset."""
    with pytest.raises(RequestError, match="the name of the program is empty; was a variable for it not set"):
        cli_run.run(["", "train.py"], as_json=as_json)


def test_a_script_that_is_not_executable_names_the_fix(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    shown = run("--", str(script))
    assert shown.returncode == 126
    assert shown.stderr == f"error: cannot execute {script}; start it with its interpreter: python {script}\n"


def test_json_starts_nothing() -> None:
    """What to set where another launcher starts the program."""
    app = typer.Typer()
    app.command()(cli_run.run)
    shown = CliRunner().invoke(app, ["--json", "--", "false"], env={"PYTHONPATH": "/theirs"})
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == {
        "command": ["false"],
        "environment": {"PYTHONPATH": f"{STARTUP}{os.pathsep}/theirs", "TILEWRIGHT_PATCH": "1"},
    }


@pytest.mark.parametrize("theirs", ["", "/a", "/a::/b"])
def test_the_path_is_prefixed_once(theirs: str) -> None:
    once = cli_run.environment({"PYTHONPATH": theirs})
    assert once["PYTHONPATH"].startswith(str(STARTUP))
    assert once["PYTHONPATH"].removeprefix(str(STARTUP)).removeprefix(os.pathsep) == theirs
    assert cli_run.environment(once)["PYTHONPATH"] == once["PYTHONPATH"]


def test_a_wrong_mode_names_the_choices() -> None:
    shown = run("--mode", "sometimes", "--", "true", COLUMNS="200")
    assert shown.returncode == 2
    assert all(f"'{choice}'" in shown.stderr for choice in ("now", "stored", "off"))
