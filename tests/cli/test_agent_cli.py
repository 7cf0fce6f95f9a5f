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


def test_an_empty_command_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "speed up train.py", "--command", "", "--yes"]) == 2
    out, error = capsys.readouterr()
    assert (out, error) == ("", "error: --command is empty; name the program, e.g. python train.py\n")
    assert script.read_text() == PROGRAM


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


def test_a_program_without_anything_to_try_is_not_run(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = script.parent / "ran"
    script.write_text(f"open({str(ran)!r}, 'w')\n")
    assert cli.main(["agent", "speed up train.py", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "nothing that would make this program faster was found in its source, so it is not run" in out
    assert "there was nothing to try, so the program was not run" in out
    assert not ran.exists()


def test_a_file_in_another_encoding_is_named_in_the_plan(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script.parent / "beside.py").write_bytes(b"# coding: latin-1\n# caf\xe9\n")
    script.write_text("import beside\n")
    assert cli.main(["agent", "speed up train.py"]) == 0
    said = "left out: beside.py: in the encoding iso-8859-1; only plain UTF-8 is changed"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("question", [["speed up train.py"], ["speed up it", "--command", "python train.py"]])
def test_a_script_that_is_no_text_is_one_line_before_any_run(
    script: Path, capsys: pytest.CaptureFixture[str], question: list[str]
) -> None:
    script.write_bytes(b"import torch\n# caf\xe9\n")
    message = printed(capsys, "agent", *question, "--yes", code=2)["error"]["message"]
    assert message.endswith("train.py is not UTF-8 text (byte 0xe9 in line 2); save it as UTF-8")


def test_a_program_that_does_not_end_is_one_line_with_the_option(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    proposing(monkeypatch, slow="fast")
    script.write_text("import time\nslow = 1\nwhile True:\n    time.sleep(0.1)\n")
    message = printed(capsys, "agent", "speed up train.py", "--yes", "--run-seconds", "1", code=2)["error"]["message"]
    assert "did not end in 1 s" in message and "raise --run-seconds" in message


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a cute cat"], 2, "no performance question"),
        (["speed up a.py and b.py"], 2, "the question names a.py, b.py; name one, or add --command 'python a.py'"),
        (["speed up train.py", "--report", "missing.txt"], 2, "missing.txt"),
        (["speed up it", "--command", "python missing.py"], 2, "missing.py"),
        (["Apply CUDA Graph to train.py", "--yes"], 3, "cuda-graph needs"),
        (["speed up train.py", "--seconds", "nan"], 2, "--seconds': nan is not a number"),
        (["--undo", "never"], 2, "has no run of the agent; start this in the folder of the run never"),
        ([], 2, "no question"),
        ([""], 2, 'no question; ask one, for example "speed up train.py"'),
        (["", "--command", "python train.py"], 2, "no question"),
        (["speed up missing.py", "--on", "ssh:nowhere.invalid"], 2, "no file missing.py"),
    ],
)
def test_a_wrong_request_is_one_line(
    script: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    found = printed(capsys, "agent", *arguments, code=code)
    assert message in found["error"]["message"] and "\n" not in found["error"]["message"]


@pytest.mark.parametrize("named", ["my train.py", '"my train.py"', "`./my train.py`", "my train.py or so", "the {}"])
def test_the_name_of_a_file_may_have_spaces(script: Path, capsys: pytest.CaptureFixture[str], named: str) -> None:
    spaced = script.rename(script.with_name("my train.py"))
    plan = printed(capsys, "agent", f"speed up {named.format(spaced)}")["plan"]
    assert Path(plan["program"][1]).name == "my train.py"


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
