"""What a command says of what it stored is so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.made_runs import tune_run, tuned, tuned_workload

from tilewright.cli import main as cli
from tilewright.cli.interruption import Interrupted
from tilewright.cli.shared import resumable
from tilewright.cli.tune_output import print_tables
from tilewright.ledger.tunings import TuneLedger


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
