"""The ledgers of several machines become one: no run is lost or doubled, in whatever order they are merged."""

from __future__ import annotations

import itertools
import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.cli import main as cli
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.merging import MergedRun, merged
from tilewright.ledger.records import Attempt, Iteration, RunRecord, TuneRun
from tilewright.ledger.runs import LedgerFile
from tilewright.ledger.tunings import TuneLedger
from tilewright.records import Bound, Candidate, Configuration, Machine, MeasuredTime, Workload, WorkloadResult

MACHINE = Machine("sm_90", None, None, "here", {})
TIME = MeasuredTime(1.0, (0.9, 1.1), (0.9, 1.0, 1.1))


def iteration(n: int) -> Iteration:
    attempts = (Attempt(value="64", status="raced", reason="", measured={"w": TIME}),) * (n > 0)
    return Iteration(n=n, optimization="it", correctness="PASS", status="keep", reason="", attempts=attempts)


def optimized(path: Path, iterations: int, *, key: str = "k", finished: bool = False) -> str:
    with Ledger(path / "ledger.db") as ledger:
        run = ledger.begin(RunRecord(key=key, task="t", machine=MACHINE, measured=True, kernel="k", baseline=())).run
        more(ledger, run, 0, iterations)
        if finished:
            ledger.finish(run, "done", ())
    return run


def more(ledger: Ledger, run: str, first: int, last: int) -> None:
    for n in range(first, last):
        ledger.append(run, iteration(n))


def tuned(path: Path) -> str:
    config = Configuration.of({"TILE": 64})
    best = Candidate(config, "raced", "", None, 1.0, None, TIME)
    bound = Bound("memory", "why", 1.0, 2.0, 1.0)
    result = WorkloadResult(Workload("w", {}), bound, best, (), (best,), config, "fastest")
    with TuneLedger(path / "ledger.db") as ledger:
        run = ledger.begin(TuneRun(key="k", task="t", machine=MACHINE, measured=True)).run
        ledger.save(run, result)
        ledger.finish(run, {"total": 1.0})
    return run


def merge(into: Path, *others: Path) -> list[MergedRun]:
    with LedgerFile(into / "ledger.db") as ledger:
        return [run for other in others for run in merged(ledger, LedgerFile(other / "ledger.db"))]


def content(path: Path) -> dict[str, object]:
    """All that reports are made of."""
    found: dict[str, object] = {}
    with Ledger(path / "ledger.db") as ledger, TuneLedger(path / "ledger.db") as tunings:
        for run in LedgerFile(path / "ledger.db").runs():
            of: Ledger | TuneLedger = ledger if run.command == "optimize" else tunings
            parts = ledger.iterations(run.run) if of is ledger else tunings.load(run.run)
            found[run.run] = (of.run(run.run), parts)
    return found


@contextmanager
def folders() -> Iterator[Iterator[Path]]:
    with tempfile.TemporaryDirectory() as name:
        yield (Path(name) / str(n) for n in itertools.count())


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=2), st.lists(st.integers(0, 2), max_size=2), st.integers(0, 2))
def test_the_order_of_merges_does_not_matter(first: list[int], second: list[int], later: int) -> None:
    """Commutative, associative and idempotent, also if a run goes on between two merges."""
    with folders() as new:
        a, b, one, other, both = (next(new) for _ in range(5))
        runs = [optimized(a, count) for count in first] + [optimized(b, count) for count in second] + [tuned(b)]
        merge(one, a)
        for run, count in zip(runs, first, strict=False):
            with Ledger(a / "ledger.db") as ledger:
                more(ledger, run, count, count + later)
        expected = content(a) | content(b)
        merge(one, b, a)
        merge(other, a, b)
        merge(both, b)
        merge(both, other)
        assert content(one) == content(other) == content(both) == expected and set(expected) == set(runs)
        assert {run.outcome for run in merge(one, a, b, other)} <= {"same"}
        assert content(one) == expected


def test_a_run_that_goes_on_elsewhere_is_extended_and_none_is_resumed(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run = optimized(there, 2)
    assert [each.outcome for each in merge(here, there)] == ["added"]
    with Ledger(here / "ledger.db") as ledger:
        assert ledger.resume("k") is None, "its times are those of another machine"
    with Ledger(there / "ledger.db") as ledger:
        more(ledger, run, 2, 3)
        ledger.finish(run, "done", ())
    assert [each.outcome for each in merge(here, there)] == ["extended"]
    assert content(here) == content(there)


def test_a_run_of_this_ledger_is_not_changed(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run = optimized(here, 1)
    merge(there, here)
    with closing(sqlite3.connect(there / "ledger.db")) as file, file:
        file.execute("INSERT INTO run_events (run, event, at) VALUES (?, 'resumed', 'later')", (run,))
    before = content(here)
    [left] = merge(here, there)
    assert left.outcome == "left out" and "a run of this ledger" in left.why and content(here) == before


@pytest.mark.parametrize(("change", "why"), [
    ("UPDATE attempts SET record = '{'", "attempt 0 of iteration 1 of run"),
    ("UPDATE iterations SET record = '{}' WHERE n = 1", "iteration 1 of run"),
    ("UPDATE runs SET command = 'dance'", "unknown command 'dance'; known: tune, optimize, agent"),
    ("UPDATE runs SET record = 'x'", "cannot be read"),
    ("UPDATE run_events SET event = 'exploded'", "its rows belong to no run"),
    ("UPDATE iterations SET n = 7 WHERE n = 1", "its rows belong to no run"),
    ("UPDATE runs SET id = '../../x'", "its name is none that Tilewright gives"),
])  # fmt: skip
def test_a_damaged_run_is_left_out_by_a_line_and_the_others_are_merged(tmp_path: Path, change: str, why: str) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    optimized(there, 2)
    with closing(sqlite3.connect(there / "ledger.db")) as file, file:
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            file.execute(f"DROP TRIGGER {name}")
        file.execute("PRAGMA ignore_check_constraints = ON")
        file.execute(change)
    sound = tuned(there)
    left, added = sorted(merge(here, there), key=lambda run: run.outcome != "left out")
    assert (left.outcome, added.outcome, added.run) == ("left out", "added", sound)
    assert why in left.why and "\n" not in left.why and set(content(here)) == {sound}


def test_the_command_says_what_became_of_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run = tuned(there)
    command = ("report", "--home", str(here), "--merge")
    assert cli.main((*command, str(there))) == 0
    assert f"added: run {run} of {there / 'ledger.db'}" in capsys.readouterr().out
    assert cli.main((*command, str(there), "--json")) == 0
    assert [each["outcome"] for each in json.loads(capsys.readouterr().out)] == ["same"]
    assert cli.main(("report", "--home", str(here), "--list")) == 0
    assert f"from {there / 'ledger.db'}" in capsys.readouterr().out
    assert cli.main((*command, str(tmp_path / "nowhere"))) == 2
    assert "there is no ledger" in capsys.readouterr().err
