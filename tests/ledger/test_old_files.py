"""Files that earlier versions wrote: an old ledger still reads, and old results are taken over, once.

The files in old/ were written by the code before the two became one file (commit c7ea93e).
"""

from __future__ import annotations

import gzip
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ledger.test_tunings import MACHINE, begin, result, resumed
from tests.made_runs import DIFF, WORKLOADS, baseline_iteration, crashed, metrics, raced, run_record

from tilewright.errors import StorageError
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Metrics
from tilewright.ledger.runs import LedgerFile
from tilewright.ledger.tunings import TuneLedger

OLD = Path(__file__).parent / "old"
FINISHED, INTERRUPTED = "rms_norm", "matmul"
POLICY = {"l2": "cold", "launch": "graph", "tie_band": 0.01, "confidence": 0.99, "seed": 0}


def old(name: str, folder: Path) -> Path:
    """An old file, put where its user has it."""
    path = folder / name
    path.write_bytes(gzip.decompress((OLD / f"{name}.gz").read_bytes()))
    return path


def wordless(versions: tuple[Metrics, ...]) -> list[Metrics]:
    """Without the words of the bound, which have changed since."""
    return [replace(one, bound=one.bound and replace(one.bound, why="")) for one in versions]


def refuse(text: str) -> None:
    raise AssertionError(text)


# The ledger of schema 1


def test_a_ledger_of_the_first_schema_still_reads(tmp_path: Path) -> None:
    with Ledger(old("ledger.db", tmp_path)) as ledger:
        unfinished, finished = ledger.runs()
        run = ledger.run(finished.run)
        assert ledger.iterations(run.run) == (baseline_iteration(), raced(1, 15.0, 20.0, keep=True), crashed(2))
        assert (run.stop_reason, run.patch) == ("nothing left to try", DIFF)
        assert wordless(run.final) == wordless(tuple(metrics(name, 15.0, before_us=20.0) for name in WORKLOADS))
        assert wordless(run.baseline) == wordless(run_record().baseline)
        assert replace(run_record(), run=run.run, started=run.started, baseline=()) == replace(
            run, finished=None, stop_reason=None, final=(), patch="", baseline=()
        )
        again = ledger.resume("unfinished")
        assert again is not None
        assert (again[0].run, again[1]) == (unfinished.run, (baseline_iteration(),))
        ledger.append(unfinished.run, raced(1, 15.0, 20.0, keep=True))
        ledger.finish(unfinished.run, "patience", ())


def test_tune_writes_into_a_ledger_of_the_first_schema(tmp_path: Path) -> None:
    path = old("ledger.db", tmp_path)
    with TuneLedger(path) as store, Ledger(path) as ledger:
        run = begin(store)
        store.save(run, result())
        assert store.load(run).workloads == (result(),)
        assert len(store.runs()) == 1
        assert len(ledger.runs()) == 2
        with LedgerFile(path) as whole:
            loops = [one.run for one in ledger.runs()]
            assert [one.run for one in whole.runs()] == [run, *loops]
            assert whole.find("latest") == (run, "tune")
            assert whole.find(loops[0]) == (loops[0], "optimize")


def test_an_old_ledger_is_brought_up_to_date_once(tmp_path: Path) -> None:
    path = old("ledger.db", tmp_path)
    for _ in range(2):
        with Ledger(path) as ledger:
            assert len(ledger.runs()) == 2
    with sqlite3.connect(path) as connection:
        versions = connection.execute("SELECT version FROM tilewright_ledger_schema").fetchall()
        assert versions == [(1,), (2,), (3,), (4,), (5,), (6,), (7,)]
    connection.close()


def test_a_new_ledger_and_an_old_one_brought_up_to_date_have_the_same_tables(tmp_path: Path) -> None:
    schemas = []
    for path in (old("ledger.db", tmp_path), tmp_path / "new" / "ledger.db"):
        with Ledger(path) as ledger:
            ledger.begin(run_record())
        with sqlite3.connect(path) as connection:
            schemas.append(connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall())
        connection.close()
    assert schemas[0] == schemas[1]


# results.db


def test_old_results_are_taken_over(tmp_path: Path) -> None:
    path = old("results.db", tmp_path)
    content = path.read_bytes()
    with TuneLedger(tmp_path / "ledger.db", note=refuse) as store:
        newest, first = store.runs()
        assert (newest.task, newest.finished, newest.workloads) == (INTERRUPTED, None, ("large",))
        assert (first.task, first.finished is not None, first.workloads) == (FINISHED, True, ("large", "small"))
        loaded = store.load(first.run)
        race = {"policy": POLICY, "seed": 7, "rounds": 41}
        assert loaded.workloads == (
            replace(result("large"), race=race),
            replace(result("small"), best=None, tied=(), candidates=(), race=None),
        )
        assert (loaded.machine, loaded.measured) == (MACHINE, True)
        assert loaded.seconds == {"compile": 1.5, "race": 0.25, "total": 2.0}
        run = store.run(first.run)
        assert (run.policy, run.seed, run.started) == (POLICY, 7, first.started)
        assert resumed(store, "interrupted") == (newest.run, {"large": result("large")})
        store.save(newest.run, result("small"))
        store.finish(newest.run, {})
    assert sorted(os.listdir(tmp_path)) == ["ledger.db", "results.db.imported"]
    assert (tmp_path / "results.db.imported").read_bytes() == content


def test_old_results_are_taken_over_once(tmp_path: Path) -> None:
    for _ in range(2):  # the second time stands for a kill between the copy and the new name
        old("results.db", tmp_path)
        with LedgerFile(tmp_path / "ledger.db", note=refuse) as ledger:
            assert len(ledger.runs()) == 2
        assert not (tmp_path / "results.db").exists()


def test_new_runs_stay_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with TuneLedger(path, note=refuse) as store:
        run = begin(store)
    old("results.db", tmp_path)
    with TuneLedger(path, note=refuse) as store:
        assert store.run("latest").run == run
        assert len(store.runs()) == 3


def broken(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8192] + bytes(path.stat().st_size - 8192))


def no_database(path: Path) -> None:
    path.write_text("not a database, and long enough to be read as one" * 20)


@pytest.mark.parametrize("damage", [broken, no_database])
def test_damaged_old_results_are_one_line_and_do_not_stop_the_run(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = old("results.db", tmp_path)
    damage(path)
    content, notes = path.read_bytes(), []  # type: bytes, list[str]
    with TuneLedger(tmp_path / "ledger.db", note=notes.append) as store:
        run = begin(store)
        store.save(run, result())
        assert [one.run for one in store.runs()] == [run]
    (note,) = notes
    assert f"the runs in {path}, of an earlier Tilewright, cannot be read (" in note
    assert "; fix: move that file away, or restore a copy of it" in note
    assert "\n" not in note
    assert path.read_bytes() == content


def test_a_note_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    no_database(tmp_path / "results.db")
    with TuneLedger(tmp_path / "ledger.db") as store:
        assert store.runs() == ()
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("note: the runs in ") and said.err.count("\n") == 1


def test_the_results_of_another_program_are_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "results.db") as connection:
        connection.execute("CREATE TABLE runs (name)")
    connection.close()
    with TuneLedger(tmp_path / "ledger.db", note=refuse) as store:
        assert begin(store) == store.runs()[0].run
    assert (tmp_path / "results.db").exists()


def test_an_old_results_file_given_by_name_is_refused_with_a_fix(tmp_path: Path) -> None:
    path = old("results.db", tmp_path)
    content = path.read_bytes()
    with TuneLedger(path) as store, pytest.raises(StorageError, match="results of an earlier Tilewright; fix: name"):
        begin(store)
    assert path.read_bytes() == content
