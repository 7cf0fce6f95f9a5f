"""The store keeps whole workloads, whatever ends the process or fills the disk, and keeps them apart."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import StorageError, UnknownChoice
from tilewright.ledger.file import key_of
from tilewright.ledger.records import TuneRun
from tilewright.ledger.runs import default_path
from tilewright.ledger.tunings import TuneLedger
from tilewright.records import (
    Bound,
    Candidate,
    Checked,
    Configuration,
    Machine,
    MachineCode,
    MeasuredTime,
    PredictedTime,
    TuningResult,
    Workload,
    WorkloadResult,
)

MACHINE = Machine("sm_90", "H200", "580.1", "node7", {"cuda-tile": "1.7.0", "tilewright": "0.1"})
BOUND = Bound("memory", "12 FLOP/B is under the ridge at 206", 12.0, 206.0, 3.5)
CODE = MachineCode("k", 90, 40, 0, 1024, 128, 1, 0, 0, "HGMMA", 8, {"LDG.128": 4}, 200, "ab" * 32)


def tile(size: int) -> Configuration:
    return Configuration.of({"TILE_M": size, "swap": True, "scale": 1.0, "occupancy": None})


def times(center: float, rounds: int = 3) -> MeasuredTime:
    samples = tuple(center + 0.1 * step for step in range(rounds))
    return MeasuredTime(center, (center - 0.1, center + 0.1), samples)


def result(name: str = "large", candidates: int = 5, rounds: int = 3) -> WorkloadResult:
    """One candidate of each fate, and ``candidates`` in all."""
    checked = Checked("correct", "agrees with float64", 0.25, ("normal", "hostile"))
    predicted = PredictedTime(4.0, "bandwidth")
    rows = [
        Candidate(tile(32), "raced", "fastest", CODE, 0.5, predicted, times(5.0, rounds), checked),
        Candidate(tile(64), "failed", "compile: out of shared memory"),
        Candidate(tile(96), "wrong", "NaN", CODE, checked=Checked("incorrect", "NaN", math.inf)),
        Candidate(tile(128), "duplicate", "same code as TILE_M=32", CODE, 0.25, predicted),
    ]
    rows += [replace(rows[0], configuration=tile(256 + n)) for n in range(candidates - len(rows))]
    dims = {"M": 4096, "causal": True, "eps": 1e-6, "mask": None}
    race = {"policy": "cold L2", "noise": 0.004, "clocks": {"sm": [1980, 1980]}}
    return WorkloadResult(
        Workload(name, dims), BOUND, rows[0], (tile(256),), tuple(rows), tile(64), "alone in front", race
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[TuneLedger]:
    with TuneLedger(path) as opened:
        yield opened


def begin(store: TuneLedger, key: str = "key", task: str = "rms_norm") -> str:
    return store.begin(TuneRun(task=task, key=key, machine=MACHINE, measured=True)).run


def resumed(store: TuneLedger, key: str = "key") -> tuple[str, dict[str, WorkloadResult]]:
    again = store.resume(key)
    assert again is not None
    return again[0].run, again[1]


def query(path: Path, sql: str) -> list[Any]:
    """What someone sees who asks with SQL of their own."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


# What goes in comes out


def test_a_run_comes_back_as_it_was(store: TuneLedger, path: Path) -> None:
    first, second = result("large"), replace(result("small"), best=None, race=None, tied=(), candidates=())
    run = begin(store)
    store.save(run, first)
    store.save(run, second)
    store.finish(run, {"compile": 1.5, "race": 0.25})
    expected = TuningResult("rms_norm", MACHINE, True, (first, second), run, {"compile": 1.5, "race": 0.25})
    for reader in (store, TuneLedger(path)):
        loaded = reader.load(run)
        assert loaded == expected
        assert repr(loaded) == repr(expected)
        assert loaded.workloads[0].best is loaded.workloads[0].candidates[0]
        reader.close()


def test_the_columns_answer_plain_sql(store: TuneLedger, path: Path) -> None:
    store.save(begin(store), result())
    rows = query(path, "SELECT status, median_us, predicted_us, code_hash FROM candidates ORDER BY position")
    assert rows[:2] == [("raced", 5.0, 4.0, "ab" * 32), ("failed", None, None, None)]
    assert query(path, "SELECT arch, gpu, measured, json_extract(record, '$.machine.versions') FROM runs") == [
        ("sm_90", "H200", 1, json.dumps(dict(MACHINE.versions), separators=(",", ":")))
    ]
    assert query(path, "SELECT best, shipped FROM workloads")[0][0] == 0
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    times_us = "SELECT count(*), min(value) FROM candidates, json_each(samples) WHERE position = 0"
    assert query(path, times_us) == [(3, 5.0)]


def test_a_second_save_of_a_workload_replaces_it_in_its_place(store: TuneLedger) -> None:
    run = begin(store)
    store.save(run, result("large", candidates=9))
    store.save(run, result("small"))
    store.save(run, result("large", candidates=6))
    assert store.load(run).workloads == (result("large", candidates=6), result("small"))


def test_infinity_nan_numpy_and_broken_text_survive(store: TuneLedger) -> None:
    half: Any = np.float32(0.5)
    odd = MeasuredTime(math.inf, (math.nan, np.float64(2.0)), (half, math.inf))
    broken = b"ptxas: \xff".decode(errors="surrogateescape")
    rows = (
        Candidate(tile(1), "raced", "odd", measured=odd, compile_seconds=half),
        Candidate(tile(2), "failed", broken + "\x00é"),
    )
    run = begin(store)
    store.save(run, replace(result(), candidates=rows, best=rows[0]))
    first, second = store.load(run).workloads[0].candidates
    assert first.measured is not None
    assert repr(first.measured) == "MeasuredTime(us=inf, interval_us=(nan, 2.0))"
    assert (first.measured.samples_us, first.compile_seconds) == ((0.5, math.inf), 0.5)
    assert second.reason == "ptxas: \\udcff\x00é"


def test_a_best_from_elsewhere_is_refused_and_nothing_is_stored(store: TuneLedger) -> None:
    run = begin(store)
    with pytest.raises(ValueError, match=r"large: the best, TILE_M=7,.* is not among the candidates"):
        store.save(run, replace(result(), best=Candidate(tile(7), "raced", "")))
    unfit = Candidate(tile(1), "raced", "", replace(CODE, copies={1: 2}))  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"MachineCode\.copies: the key 1 is int"):
        store.save(run, replace(result(), candidates=(unfit,), best=None))
    assert store.load(run).workloads == ()


# Runs


def test_the_newest_unfinished_run_of_a_key_resumes(store: TuneLedger) -> None:
    assert store.resume("key") is None
    begin(store, "key")
    run = begin(store, "key")
    begin(store, "another key")
    store.save(run, result("large"))
    store.save(run, result("small"))
    assert resumed(store) == (run, {"large": result("large"), "small": result("small")})
    store.finish(run, {})
    other, workloads = resumed(store)
    assert other != run
    assert workloads == {}


def test_runs_are_listed_newest_first(path: Path) -> None:
    moments = (datetime(2025, 11, 21, tzinfo=timezone.utc) + timedelta(seconds=n) for n in range(9))
    store = TuneLedger(path, clock=lambda: next(moments), token=lambda size: "0f" * size)
    first, second = begin(store, "a", "rms_norm"), begin(store, "b", "matmul")
    store.save(second, result("large"))
    store.save(second, result("a small one"))
    store.finish(first, {"race": 1.0})
    assert (first, second) == ("20251121-000000-000000-0f0f0f", "20251121-000001-000000-0f0f0f")
    norm, matmul = store.runs()  # the newest event: a run that finishes is the newest again
    assert (matmul.run, matmul.task, matmul.key, matmul.arch, matmul.gpu) == (second, "matmul", "b", "sm_90", "H200")
    assert (matmul.finished, matmul.measured, matmul.workloads) == (None, True, ("large", "a small one"))
    assert (norm.started, norm.finished) == ("2025-11-21T00:00:00.000000+00:00", "2025-11-21T00:00:02.000000+00:00")
    assert store.runs("rms_norm") == (norm,)
    assert store.runs("fmha") == ()
    store.close()


def test_identifiers_sort_by_time(store: TuneLedger) -> None:
    runs = [begin(store) for _ in range(20)]
    assert runs == sorted(runs)
    assert len(set(runs)) == 20


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.load("nope"),
        lambda store: store.save("nope", result()),
        lambda store: store.finish("nope", {}),
    ],
)
def test_an_unknown_run_names_the_known(store: TuneLedger, call: Callable[[TuneLedger], object]) -> None:
    with pytest.raises(UnknownChoice, match="unknown run 'nope'; known: none"):
        call(store)
    runs = [begin(store) for _ in range(7)]
    with pytest.raises(UnknownChoice, match=f"unknown run 'nope'; known: (latest, )?{runs[6]}, .*{runs[2]}, …$"):
        call(store)


def test_reading_creates_nothing(path: Path) -> None:
    with TuneLedger(path) as store:
        assert store.runs() == ()
        assert store.resume("key") is None
        with pytest.raises(UnknownChoice):
            store.load("nope")
    assert not path.parent.exists()


def test_the_default_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TILEWRIGHT_HOME", raising=False)
    assert TuneLedger().path == tmp_path / ".tilewright" / "ledger.db"
    monkeypatch.setenv("TILEWRIGHT_HOME", "")
    assert default_path() == Path(".tilewright/ledger.db")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "elsewhere"))
    assert TuneLedger().path == tmp_path / "elsewhere" / "ledger.db"


def test_a_key_is_stable_and_tells_apart() -> None:
    parts = {"task": "def kernel(): …", "arch": "sm_90", "policy": {"rounds": 25, "noise": 0.5}, "space": (tile(64),)}
    assert key_of(parts) == key_of(dict(reversed(parts.items())))
    assert key_of(parts) == "18efe4ca74f7fcdcc5aaf5d1a6423124fb71a2c0203a09e33d32d1ff184c91e4"
    others = [parts | {"arch": "sm_100"}, parts | {"policy": {"rounds": 25.0, "noise": 0.5}}, {}]
    assert len({key_of(each) for each in (parts, *others)}) == 4
    with pytest.raises(ValueError, match=r"dict\.path: .*Path has no JSON form"):
        key_of({"path": Path("task.py")})


# What ends the process


CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.ledger.test_tunings import MACHINE, TuneLedger, begin, result
store = TuneLedger(Path(sys.argv[1]))
run = begin(store)
print(run, flush=True)
store.save(run, result("done"))
"""

BLOCKED_IN_A_SAVE = (
    CHILD
    + """
store._connection.execute("PRAGMA cache_size = 4")   # so that pages reach the file before the commit
ticks = 0
def tick():
    global ticks
    ticks += 1
    if ticks == 200:
        print("inside", store._connection.in_transaction, flush=True)
        time.sleep(3600)
store._connection.set_progress_handler(tick, 100)
store.save(run, result(sys.argv[2], candidates=400, rounds=200))
"""
)

SAVES_FOR_EVER = (
    CHILD
    + """
for n in range(1_000_000):
    store.save(run, result(f"w{n}", candidates=40, rounds=200))
"""
)

WRITES_TEN = (
    CHILD
    + """
for n in range(9):
    store.save(run, result(f"w{n}", candidates=8))
store.finish(run, {})
"""
)


def child(script: str, path: Path, name: str = "", **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(path), name, str(Path(__file__).parents[2])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("name", ["new", "done"])
def test_a_kill_in_the_middle_of_a_save_leaves_what_was_before(path: Path, name: str) -> None:
    """The kill comes inside the transaction; of a new workload, and of one that is being replaced."""
    with child(BLOCKED_IN_A_SAVE, path, name) as process:
        run, inside = line(process), line(process)
        half = Path(f"{path}-wal").stat().st_size
        process.kill()
    assert inside == "inside True"
    assert half > 500_000, "the half-written pages were in the file"
    with TuneLedger(path) as store:
        assert resumed(store) == (run, {"done": result("done")})
        store.save(run, result("after"))
        assert store.load(run).workloads == (result("done"), result("after"))
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_kill_at_any_time_leaves_whole_workloads(path: Path) -> None:
    delays = random.Random(7)
    for _ in range(3):
        with child(SAVES_FOR_EVER, path) as process:
            line(process)
            time.sleep(0.05 + 0.2 * delays.random())
            process.kill()
    with TuneLedger(path) as store:
        for summary in store.runs():
            for found in store.load(summary.run).workloads:
                name = found.workload.name
                assert found == (result(name) if name == "done" else result(name, candidates=40, rounds=200))
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_an_interrupt_in_a_save_leaves_what_was_before(store: TuneLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(store)
    store.save(run, result("done"))
    calls = 0

    def interrupted(*arguments: Any) -> int | None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return insert(*arguments)

    from tilewright.ledger import tunings as module

    insert = module.insert
    with monkeypatch.context() as patch:
        patch.setattr(module, "insert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.save(run, result("done", candidates=9))
    assert store.load(run).workloads == (result("done"),)


def test_four_processes_write_at_once(path: Path) -> None:
    processes = [child(WRITES_TEN, path) for _ in range(4)]
    runs = {line(process) for process in processes}
    for process in processes:
        with process:
            assert process.wait() == 0
    with TuneLedger(path) as store:
        assert {summary.run for summary in store.runs()} == runs
        for run in runs:
            expected = [result("done"), *(result(f"w{n}", candidates=8) for n in range(9))]
            assert store.load(run).workloads == tuple(expected)
            assert store.resume("key") is None


@pytest.mark.parametrize("lock", ["DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_a_file_that_another_process_is_creating_is_waited_for(path: Path, lock: str) -> None:
    """SQLite itself does not wait while it changes a file to WAL: two first runs would collide."""
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute(f"BEGIN {lock}")
    other.execute("SELECT * FROM sqlite_master").fetchall()
    release = threading.Timer(0.2, other.execute, ["COMMIT"])
    release.start()
    with TuneLedger(path) as store:
        run = begin(store)
        release.join()
        other.close()
        assert [summary.run for summary in store.runs()] == [run]
    assert query(path, "PRAGMA journal_mode") == [("wal",)]


def test_a_lock_that_stays_is_an_error_with_a_fix(path: Path) -> None:
    with TuneLedger(path) as store:
        store._schema = replace(store._schema, busy_seconds=0.1)
        run = begin(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"ledger\.db: database is locked; fix: another process has been"):
            store.save(run, result())
        assert store.load(run).workloads == ()
        other.execute("ROLLBACK")
        other.close()
        store.save(run, result())
        assert store.load(run).workloads == (result(),)


# What the disk does


def one_line(error: pytest.ExceptionInfo[StorageError], path: Path) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text
    assert "; fix: " in text
    return text


def test_sqlite_full_keeps_the_earlier_data(store: TuneLedger, path: Path) -> None:
    run = begin(store)
    store.save(run, result("done"))
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    with pytest.raises(StorageError) as error:
        store.save(run, result("large", candidates=200, rounds=200))
    assert "database or disk is full; fix: free some space" in one_line(error, path)
    assert store.load(run).workloads == (result("done"),)
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.save(run, result("large", candidates=200, rounds=200))
    assert len(store.load(run).workloads) == 2


ON_A_SMALL_DISK = (
    CHILD
    + """
from tilewright.errors import StorageError
try:
    store.save(run, result("large", candidates=400, rounds=400))
except StorageError as error:
    print(error, flush=True)
assert store.load(run).workloads == (result("done"),)
store.save(run, result("small"))
assert store.load(run).workloads == (result("done"), result("small"))
store.close()
assert TuneLedger(store.path).load(run).workloads == (result("done"), result("small"))
print("intact", flush=True)
"""
)


def can_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a file system of its own")
def test_a_full_disk_keeps_the_earlier_data(tmp_path: Path) -> None:
    """On a real file system of 1 MiB, in a mount namespace of the child's own."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = 'mount -t tmpfs -o size=1m none "$0" && exec "$@"'
    arguments = [sys.executable, "-c", ON_A_SMALL_DISK, str(small / "ledger.db"), "", str(Path(__file__).parents[2])]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, str(small), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    _, message, intact = done.stdout.splitlines()
    assert message.startswith(f"cannot use {small}/ledger.db: database or disk is full; fix: free some space")
    assert intact == "intact"


def test_a_limit_on_the_file_size_keeps_the_earlier_data(path: Path) -> None:
    """The write fails in the operating system (EFBIG), which SQLite calls a disk I/O error."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n"
    with child(limit + ON_A_SMALL_DISK, path) as process:
        _, message, intact = line(process), line(process), line(process)
    assert message.startswith(f"cannot use {path}: disk I/O error; fix: ")
    assert intact == "intact"


# What is in the way


@pytest.mark.parametrize("content", [b"my notes, not a database\n" * 100, b"no", b"notes" * 150, bytes(4096)])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    for call in (begin, TuneLedger.runs):
        with TuneLedger(path) as store, pytest.raises(StorageError) as error:
            call(store)
        assert "not a database; fix: move that file away" in one_line(error, path)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["ledger.db"]


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (name)")
    connection.close()
    content = path.read_bytes()
    with TuneLedger(path) as store, pytest.raises(StorageError, match="is a database of another program") as error:
        begin(store)
    one_line(error, path)
    assert path.read_bytes() == content


def test_a_newer_schema_is_left_alone(store: TuneLedger, path: Path) -> None:
    run = begin(store)
    store.save(run, result())
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tilewright_ledger_schema SET version = 8")
        connection.execute("ALTER TABLE runs RENAME COLUMN task TO subject")
    connection.close()
    content = path.read_bytes()
    for call in (begin, TuneLedger.runs):
        with pytest.raises(StorageError, match=r"schema 8, this one has 7\); fix: update Tilewright") as error:
            call(store)
        one_line(error, path)
    assert path.read_bytes() == content


def test_a_damaged_file_is_left_alone(store: TuneLedger, path: Path) -> None:
    run = begin(store)
    store.save(run, result(candidates=60))
    store.close()
    content = path.read_bytes()
    path.write_bytes(content[:8192] + bytes(len(content) - 8192))
    damaged = path.read_bytes()
    with pytest.raises(StorageError, match="malformed; fix: move that file away, or restore") as error:
        store.load(run)
    one_line(error, path)
    store.close()
    assert path.read_bytes() == damaged


def test_a_result_of_another_version_says_so(store: TuneLedger, path: Path) -> None:
    run, notes = begin(store), list[str]()
    store.save(run, result())
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER workloads_refuse_UPDATE")
        connection.execute("""UPDATE workloads SET bound = '{"kind": "memory"}'""")
    connection.close()
    store.note = notes.append
    assert store.load(run).workloads == ()
    assert re.search(r"workload large of run .* \(.*missing field 'why'\) cannot be read and is left out", notes[0])


def test_a_field_added_since_takes_its_default(store: TuneLedger, path: Path) -> None:
    run = begin(store)
    store.save(run, result())
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER candidates_refuse_UPDATE")
        connection.execute("""UPDATE candidates SET checked = '{"verdict": "correct", "reason": "agrees"}'""")
    connection.close()
    assert store.load(run).workloads[0].candidates[0].checked == Checked("correct", "agrees")


def test_a_path_that_cannot_be_is_an_error_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder" / "ledger.db").mkdir(parents=True)
    to_a_folder = "set TILEWRIGHT_HOME to a folder; that is a file"
    for path, fix in (
        (tmp_path / "file" / "ledger.db", to_a_folder),
        (tmp_path / "file" / "a" / "ledger.db", to_a_folder),
        (tmp_path / "folder/ledger.db", "move it away, or set TILEWRIGHT_HOME to another directory"),
    ):
        with TuneLedger(path) as store, pytest.raises(StorageError) as error:
            begin(store)
        assert f"; fix: {fix}" in one_line(error, path)
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path / "folder" / "ledger.db") == []


def test_a_store_that_an_option_named_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a database, but long enough to be taken for one")
    for path in (tmp_path / "file" / "ledger.db", tmp_path / "file", tmp_path):
        with TuneLedger(path, variable="--store") as store, pytest.raises(StorageError) as error:
            begin(store)
        assert "name another file with --store" in str(error.value) and "TILEWRIGHT_HOME" not in str(error.value)


def test_a_home_that_names_a_file_is_no_empty_store(tmp_path: Path) -> None:
    begin(TuneLedger(tmp_path / "ledger.db"))
    with TuneLedger(tmp_path / "ledger.db" / "ledger.db") as store, pytest.raises(StorageError) as error:
        store.runs()
    assert "fix: set TILEWRIGHT_HOME to a folder; that is a file" in str(error.value)


def test_a_home_of_nobody_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", "~nobody-of-that-name/here")
    with pytest.raises(StorageError, match=r"TILEWRIGHT_HOME=~nobody-of-that-name/here is; fix: give"):
        default_path()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_an_error_with_a_fix(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with TuneLedger(tmp_path / "ledger.db") as store, pytest.raises(StorageError) as error:
        begin(store)
    one_line(error, store.path)


def test_importing_does_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import tilewright.ledger.tunings"], cwd=tmp_path, check=True)
    assert os.listdir(tmp_path) == []


# Append-only


@pytest.mark.parametrize("table", ["runs", "run_events", "workloads", "candidates"])
def test_nothing_is_changed_afterwards(store: TuneLedger, path: Path, table: str) -> None:
    """SQLite itself refuses it, whoever asks."""
    run = begin(store)
    store.save(run, result())
    store.finish(run, {"race": 1.0})
    before = query(path, f"SELECT * FROM {table}")
    columns = [name for _, name, *_ in query(path, f"PRAGMA table_info({table})")]
    for statement in (
        *(f"UPDATE {table} SET {column} = {column}" for column in columns),
        f"DELETE FROM {table}",
        f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
        f"INSERT INTO {table} SELECT * FROM {table}",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="the ledger is append-only"):
            query(path, statement)
    assert query(path, f"SELECT * FROM {table}") == before


def test_a_replaced_workload_stays_in_the_file(store: TuneLedger, path: Path) -> None:
    run = begin(store)
    store.save(run, result("large", candidates=9))
    store.save(run, result("large", candidates=6))
    assert query(path, "SELECT workload, count(*) FROM candidates GROUP BY workload") == [(1, 9), (2, 6)]


def test_the_first_of_two_processes_that_finish_a_run_counts(store: TuneLedger, path: Path) -> None:
    run = begin(store)
    store.finish(run, {"race": 1.0})
    with TuneLedger(path) as other:
        other.save(run, result())
        other.finish(run, {"race": 2.0})
    assert store.load(run).seconds == {"race": 1.0}
    assert store.load(run).workloads == (result(),)


def test_a_run_keeps_how_it_was_made(store: TuneLedger) -> None:
    asked = TuneRun(
        task="rms_norm", key="key", machine=MACHINE, measured=True, where="examples/rms_norm.py:rms_norm",
        board="H200", bandwidth_gbs=4800.0, dtype="bfloat16", policy={"l2": "cold", "rounds": 25}, top=10, seed=7,
        reproduce="tilewright tune examples/rms_norm.py --seed 7",
    )  # fmt: skip
    begun = store.begin(asked)
    assert replace(begun, run="", started="") == asked
    assert store.run(begun.run) == store.run("latest") == begun
    store.finish(begun.run, {"race": 1.0})
    ended = store.run(begun.run)
    assert ended.finished is not None and ended.seconds == {"race": 1.0}
