"""The report of a damaged run shows what can be read. A mistake in a view is not taken for damage."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.made_agent_runs import several
from tests.made_runs import baseline_iteration, raced, run_record, times, tuned

from tilewright.cli import main as cli
from tilewright.errors import StorageError
from tilewright.ledger.agent_runs import AgentLedger
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.tunings import TuneLedger
from tilewright.records import Bound, MeasuredTime
from tilewright.report import report as reports
from tilewright.report.damage import impossible
from tilewright.report.report import report
from tilewright.report.tune_evidence import TuneEvidence


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def optimized(path: Path) -> str:
    with Ledger(path) as ledger:
        run = ledger.begin(run_record()).run
        for iteration in (baseline_iteration(), raced(1, 15.0, 20.0, keep=True), raced(2, 14.0, 15.0, keep=True)):
            ledger.append(run, iteration)
    return run


def tuned_run(path: Path) -> str:
    with TuneLedger(path) as ledger:
        return tuned(ledger)


def agent_run(path: Path) -> str:
    with AgentLedger(path) as ledger:
        return several(ledger)


def damaged(path: Path, table: str, column: str, to: str, where: str = "1") -> int:
    """Damages one row. Returns how many rows the table has."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"DROP TRIGGER IF EXISTS {table}_refuse_UPDATE")
        query = f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT max(rowid) FROM {table} WHERE {where})"
        assert connection.execute(query, (to,)).rowcount == 1
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(rows)


@pytest.mark.parametrize(
    ("make", "table", "column", "part"),
    [
        (optimized, "iterations", "record", "iteration"),
        (optimized, "attempts", "record", "attempts"),
        (tuned_run, "workloads", "bound", "workload"),
        (tuned_run, "candidates", "configuration", "candidates"),
        (agent_run, "agent_measurements", "record", "measurement"),
        (agent_run, "agent_findings", "record", "finding"),
        (agent_run, "agent_items", "record", "item"),
        (agent_run, "agent_changes", "record", "change"),
        (agent_run, "agent_steps", "record", "step"),
        (agent_run, "agent_ends", "record", "end"),
    ],
)
def test_one_damaged_row_leaves_the_others(
    make: Callable[[Path], str], table: str, column: str, part: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(path)
    rows = damaged(path, table, column, '{"x": ', "status <> 'raced'" if table == "candidates" else "1")
    assert cli.main(["report", run, "--home", str(path.parent), "--jsonl", "-"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    inner = part in ("attempts", "candidates")
    found = sum(len(line.get(part, ())) if inner else line["record"] == part for line in lines)
    assert found == rows - 1 and lines[0]["run"] == run
    assert len(err.splitlines()) == 1 and "cannot be read and is left out; fix: restore a copy" in err
    assert cli.main(["report", run, "--home", str(path.parent), "--markdown", "-", "--html", "-"]) in (0, 3)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert all("because it is damaged: rows that belong to the others cannot be read" in line for line in errors)


def test_many_damaged_rows_are_one_note(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = optimized(path)
    for n in range(3):
        damaged(path, "attempts", "record", "", f"n = {n % 2 + 1} AND record <> ''")
    assert cli.main(["report", run, "--home", str(path.parent), "--markdown", "-"]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert "is left out, and so are 2 more; fix: " in note


def test_a_value_that_no_run_has_is_named(path: Path) -> None:
    run = tuned_run(path)
    bound = {"kind": "memory", "why": "", "intensity": 10.0, "ridge": 206.0, "speed_of_light_us": 5.0, "flops": 1e9,
             "bytes": -1.0}  # fmt: skip
    damaged(path, "workloads", "bound", json.dumps(bound))
    with pytest.raises(StorageError, match=r"is damaged: .*bound.bytes is -1; fix: restore a copy"):
        report(run, ledger=path).html()


def test_a_mistake_in_a_view_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(details: TuneEvidence) -> str:
        raise KeyError("a mistake")

    run = tuned_run(path)
    monkeypatch.setattr(reports, "VIEWS", {TuneEvidence: (mistaken, mistaken)})
    for view in (report(run, ledger=path).markdown, report(run, ledger=path).html):
        with pytest.raises(KeyError):
            view()


@pytest.mark.parametrize("make", [optimized, tuned_run, agent_run])
def test_a_sound_run_has_no_impossible_value(make: Callable[[Path], str], path: Path) -> None:
    assert impossible(report(make(path), ledger=path).details) == ""


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (MeasuredTime(1.0, (0.5, 2.0), ()), "has no samples"),
        (MeasuredTime(0.0, (0.0, 2.0), (1.0,)), "us is 0"),
        ({"x": [times(5.0), Bound("memory", "", float("nan"), 1.0, 1.0)]}, "x[1].intensity is nan"),
    ],
)
def test_impossible_values_are_found(value: object, found: str) -> None:
    assert found in impossible(value)
