"""What a command says of what it stored is so, and what it refuses is one line."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.made_runs import tune_run, tuned, tuned_workload

from tilewright.cli import main as cli
from tilewright.cli.interruption import Interrupted
from tilewright.cli.main import main
from tilewright.cli.shared import resumable
from tilewright.cli.tune_output import print_tables
from tilewright.errors import RequestError
from tilewright.ledger.tunings import TuneLedger
from tilewright.runtime.store.config_folder import path_of


@pytest.mark.parametrize(
    ("finished", "removed", "said"),
    [
        (0, False, "no workload was finished, the same command starts over"),
        (1, False, "1 finished workload is stored, run the same command to resume"),
        (2, False, "2 finished workloads are stored, run the same command to resume"),
        (2, True, "nothing is stored: "),
    ],
)
def test_an_interruption_says_what_is_stored_only_where_it_is(
    finished: int, removed: bool, said: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with TuneLedger(home / "ledger.db") as ledger:
        run = ledger.begin(tune_run()).run
        for number in range(finished):
            ledger.save(run, tuned_workload(f"workload {number}"))
        if removed:
            shutil.rmtree(home)
        with pytest.raises(Interrupted) as ended, resumable(ledger, fresh=False):
            raise KeyboardInterrupt
    assert said in str(ended.value)


@pytest.mark.parametrize("removed", [False, True])
def test_a_run_is_stored_only_where_its_file_is(
    removed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    with TuneLedger(home / "ledger.db") as ledger:
        result = ledger.load(run := tuned(ledger))
        if removed:
            shutil.rmtree(home)
        print_tables(result, None, ledger, False)
    out = " ".join(capsys.readouterr().out.split())
    assert ("not stored: " in out) == removed and (f"stored as run {run} in" in out) != removed


@pytest.mark.parametrize("command", [["report"], ["report", "--list"]], ids=" ".join)
def test_a_report_in_an_empty_folder_says_how_to_get_a_run(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    assert cli.main([*command, "--home", str(empty)]) in (0, 2)
    assert "`tilewright tune FILE` makes one" in capsys.readouterr().err and not empty.exists()


def test_a_pipe_is_not_read_by_lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "a.py")
    assert main(["lint", str(tmp_path / "a.py")]) == 2
    assert "is neither a file nor a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "TASK", "--on", "ssh:a", "--on=ssh:b"], "--on is given 2 times; only tune takes several places"),
        (["tuned", "verify", "--on", "nowhere"], "unknown place for --on 'nowhere'; known: local"),
        (["profile", "--on", "ssh:nowhere.invalid"], "name a trace, or a program"),
        (["report", "--merge", "a", "--html", "b.html"], "--merge only copies runs"),
        (["tuned", "import", "EMPTY"], "there is no store EMPTY/tuned.db; name a file, or the folder with tuned.db"),
        (
            ["tuned", "import", "other.db"],
            "is a database of another program; fix: name another file with tilewright tuned",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_done(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    with closing(sqlite3.connect("other.db")) as other, other:
        other.execute("CREATE TABLE x (a)")
    assert main(words) in (2, 3)
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_name_that_is_too_long_for_a_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has 5000 characters, too many for a file"):
        path_of(tmp_path, "k" * 5000)
