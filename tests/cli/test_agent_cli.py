"""`tilewright agent` on the command line: it plans without a terminal, runs with --yes, and takes back."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.coordinate.made_agent import FASTER, PROGRAM, ScriptedJudge, program_in, proposing

from tilewright.cli import main as cli
from tilewright.coordinate.casebook.book import QUESTIONS
from tilewright.program import trying


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    script = program_in(tmp_path / "program")
    monkeypatch.chdir(script.parent)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return script


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert cli.main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_without_a_terminal_it_only_plans(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    proposing(monkeypatch, slow="fast")
    assert cli.main(["agent", "speed up train.py"]) == 0
    out, error = capsys.readouterr()
    assert "Route: profiling" in out and "1. S1 [Medium] fast" in out
    assert out.count("CASEBOOK:") == 1
    assert "planned only" in error
    assert script.read_text() == PROGRAM
    assert {path.name for path in (tmp_path / "home").iterdir()} <= {QUESTIONS, ".gitignore"}


def test_it_runs_shows_what_came_of_it_and_takes_it_back(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast")
    monkeypatch.setattr(trying, "ProgramTrials", lambda *_, **__: ScriptedJudge({"fast": FASTER}))
    found = printed(capsys, "agent", "speed up train.py", "--yes")
    assert "fast = 1" in script.read_text()
    assert found["run"]["stop_reason"].startswith("1 change kept")
    assert [end["status"] for end in found["parts"]["ends"]] == ["applied"]
    assert cli.main(["agent", "--undo", found["run"]["run"]]) == 0
    assert script.read_text() == PROGRAM
    assert "is taken back" in capsys.readouterr().out
    assert cli.main(["agent", "speed up train.py", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "S1 applied" in out and "Effect on your command, on this CPU: 0.02 ms before" in out
    assert "Proof that the changed code ran" in out and "agent --undo" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a cute cat"], 2, "no performance question"),
        (["speed up a.py and b.py"], 2, "the question names a.py, b.py; name one, or add --command 'python a.py'"),
        (["speed up train.py", "--report", "missing.txt"], 2, "missing.txt"),
        (["speed up it", "--command", "python missing.py"], 2, "missing.py"),
        (["Apply CUDA Graph to train.py", "--yes"], 3, "cuda-graph needs"),
        (["--undo", "never"], 2, "unknown run 'never'"),
        ([], 2, "no question"),
    ],
)
def test_a_wrong_request_is_one_line(
    script: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    found = printed(capsys, "agent", *arguments, code=code)
    assert message in found["error"]["message"] and "\n" not in found["error"]["message"]


def test_a_folder_that_cannot_be_written_is_one_line(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="fast")
    monkeypatch.setattr("os.access", lambda path, mode, **_: Path(path) != script.parent)  # root may write everywhere
    found = printed(capsys, "agent", "speed up train.py", "--yes", code=3)
    assert "cannot be written" in found["error"]["message"]
    assert script.read_text() == PROGRAM


def test_a_run_that_kept_nothing_has_nothing_to_take_back(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing(monkeypatch, slow="wrong")
    monkeypatch.setattr(trying, "ProgramTrials", lambda *_, **__: ScriptedJudge({}))
    run = printed(capsys, "agent", "speed up train.py", "--yes")["run"]["run"]
    assert cli.main(["agent", "--undo", run]) == 2
    assert "changed no file" in capsys.readouterr().err
