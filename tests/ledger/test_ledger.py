"""The ledger: whole iterations only, nothing changed afterwards, and a run found again (issue 4, X-12, X-15)."""

from __future__ import annotations

import io
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from tests.made_runs import DIFF, WORKLOADS, baseline_iteration, crashed, metrics, predicted, raced, run_record
from tests.runtime.made_winners import winner

from tilewright.errors import RequestError, StorageError, TaskError, UnknownChoice
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration
from tilewright.ledger.runs import default_path, write_jsonl
from tilewright.report.evidence import collect
from tilewright.runtime.store.winners import Winners

ROOT = Path(__file__).parents[2]
APPEND_ONLY = "the ledger is append-only"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger(path) as opened:
        yield opened


def recorded(ledger: Ledger, *iterations: Iteration, key: str = "key") -> str:
    run = ledger.begin(run_record(key)).run
    for iteration in iterations:
        ledger.append(run, iteration)
    return run


def query(path: Path, sql: str) -> list[Any]:
    """What someone sees who asks with SQL of their own."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


# What goes in comes out


def test_a_run_comes_back_as_it_was(ledger: Ledger, path: Path) -> None:
    iterations = baseline_iteration(), raced(1, 15.0, 20.0, keep=True), crashed(2)
    begun = ledger.begin(run_record())
    for iteration in iterations:
        ledger.append(begun.run, iteration)
    assert ledger.run(begun.run) == begun
    final = tuple(metrics(name, 15.0, before_us=20.0) for name in WORKLOADS)
    ledger.finish(begun.run, "nothing left to try", final, DIFF)
    with Ledger(path) as reader:
        run = reader.run(begun.run)
        assert (run.stop_reason, run.final, run.finished is not None) == ("nothing left to try", final, True)
        assert run.patch == DIFF
        assert replace(run, stop_reason=None, final=(), finished=None, patch="") == begun
        assert reader.iterations(begun.run) == iterations
        assert repr(reader.iterations(begun.run)) == repr(iterations)


def test_the_samples_of_every_version_have_rows_of_their_own(ledger: Ledger, path: Path) -> None:
    """X-12: the machine ledger has what the five columns cannot."""
    iteration = raced(1, 15.0, 20.0, keep=False)
    run = recorded(ledger, baseline_iteration(), iteration)
    found = query(path, f"SELECT version, workload, us FROM samples WHERE run = '{run}' AND n = 1")
    assert {(version, workload) for version, workload, _ in found} == {
        *((version, name) for version in ("candidate", "incumbent", "baseline") for name in WORKLOADS),
        ("attempt 0", "small"),
        ("attempt 3", "small"),
    }
    candidate = next(us for version, name, us in found if (version, name) == ("candidate", "large"))
    assert iteration.outcomes[1].measured is not None
    assert tuple(json.loads(candidate)) == iteration.outcomes[1].measured.samples_us


def test_what_failed_is_a_row_too(ledger: Ledger, path: Path) -> None:
    recorded(ledger, baseline_iteration(), raced(1, 15.0, 20.0, keep=True), crashed(2))
    rows = query(path, "SELECT n, position, status, code_hash IS NULL FROM attempts ORDER BY n, position")
    assert rows == [
        (1, 0, "raced", 0), (1, 1, "failed", 1), (1, 2, "wrong", 0), (1, 3, "crashed", 1), (2, 0, "crashed", 1),
    ]  # fmt: skip
    assert query(path, "SELECT n, status, latency_ms IS NULL FROM iterations") == [
        (0, "keep", 0), (1, "keep", 0), (2, "crash", 1),
    ]  # fmt: skip


def test_a_predicted_time_is_in_no_column_of_measured_ones(ledger: Ledger, path: Path) -> None:
    run = ledger.begin(run_record(measured=False)).run
    ledger.append(run, predicted(0, 20.0, keep=True))
    assert query(path, "SELECT latency_ms, predicted_ms, gain FROM iterations") == [(None, 0.02, None)]
    assert query(path, "SELECT count(*) FROM samples") == [(0,)]


def test_text_that_is_no_unicode_is_kept_as_escapes(ledger: Ledger) -> None:
    run = recorded(ledger, baseline_iteration(), crashed(1, reason="said \udcff"))
    assert "udcff" in ledger.iterations(run)[1].reason.encode("unicode-escape").decode()


def test_json_lines_hold_everything(ledger: Ledger) -> None:
    iterations = baseline_iteration(), raced(1, 15.0, 20.0, keep=True), crashed(2)
    run = recorded(ledger, *iterations)
    stream = io.StringIO()
    write_jsonl(stream, collect(ledger.run(run), ledger.iterations(run)).lines())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["record"] for line in lines] == ["run", "iteration", "iteration", "iteration"]
    assert lines[0]["run"] == run
    assert iterations[1].outcomes[0].measured is not None
    kept = lines[2]["outcomes"][0]["measured"]["samples_us"]
    assert tuple(kept) == iterations[1].outcomes[0].measured.samples_us
    assert [attempt["status"] for attempt in lines[2]["attempts"]] == ["raced", "failed", "wrong", "crashed"]


# Append-only


@pytest.mark.parametrize("table", ["runs", "run_events", "loads", "iterations", "attempts", "samples"])
def test_nothing_is_changed_afterwards(ledger: Ledger, path: Path, table: str) -> None:
    """Nobody improves a number: SQLite itself refuses it, whoever asks (trust.md 32)."""
    run = recorded(ledger, baseline_iteration(), raced(1, 15.0, 20.0, keep=True))
    with ledger.loading(run, "a version"):
        pass
    before = query(path, f"SELECT * FROM {table}")
    assert before
    columns = [name for _, name, *_ in query(path, f"PRAGMA table_info({table})")]
    for statement in (
        *(f"UPDATE {table} SET {column} = {column}" for column in columns),
        f"DELETE FROM {table}",
        f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
        f"INSERT INTO {table} SELECT * FROM {table}",
    ):
        with pytest.raises(sqlite3.IntegrityError, match=APPEND_ONLY):
            query(path, statement)
    assert query(path, f"SELECT * FROM {table}") == before


def test_iterations_have_no_gap(ledger: Ledger, path: Path) -> None:
    run = recorded(ledger, baseline_iteration())
    with pytest.raises(ValueError, match="iteration 2 of run"):
        ledger.append(run, crashed(2))
    skipped = "INSERT INTO iterations SELECT run, 2, entry, optimization, site, value, correctness, status, risk,"
    skipped += " latency_ms, predicted_ms, gain, reason, at, record FROM iterations"
    with pytest.raises(sqlite3.IntegrityError, match="without a gap"):
        query(path, skipped)


def test_two_processes_cannot_both_append_an_iteration_to_one_run(ledger: Ledger, path: Path) -> None:
    run = recorded(ledger, baseline_iteration())
    with Ledger(path) as other:
        other.append(run, raced(1, 15.0, 20.0, keep=True))
    with pytest.raises(StorageError, match=r"iteration 1 of run .* already: another process .*; fix: let one"):
        ledger.append(run, crashed(1))
    assert ledger.iterations(run)[1].status == "keep"


def test_a_finished_run_takes_nothing_more(ledger: Ledger, path: Path) -> None:
    run = recorded(ledger, baseline_iteration())
    ledger.finish(run, "patience", ())
    for change in (lambda: ledger.append(run, crashed(1)), lambda: ledger.finish(run, "again", ())):
        with pytest.raises(StorageError, match="as finished"):
            change()
    with pytest.raises(sqlite3.IntegrityError, match=APPEND_ONLY):
        query(path, f"INSERT INTO run_events (run, event, at) VALUES ('{run}', 'resumed', '')")


# Found again


def test_only_a_loading_that_the_process_did_not_survive_has_no_end(ledger: Ledger, path: Path) -> None:
    run = recorded(ledger, baseline_iteration())
    for error in (TaskError("no such name"), KeyboardInterrupt()):
        with pytest.raises(type(error)), ledger.loading(run, "fails"):
            raise error
    with ledger.loading(run, "fails"):
        assert query(path, "SELECT event FROM loads ORDER BY number")[-1] == ("loading",), "recorded before it loads"
    killed = ledger.loading(run, "kills")
    killed.__enter__()
    with pytest.raises(TaskError, match="the process was killed while it loaded"), Ledger(path).loading(run, "kills"):
        raise AssertionError("loaded again")
    with ledger.loading(recorded(ledger, baseline_iteration(), key="another"), "kills"):
        pass


def test_a_run_that_was_cut_short_is_resumed(ledger: Ledger, path: Path) -> None:
    recorded(ledger, baseline_iteration(), key="other")
    run = recorded(ledger, baseline_iteration(), raced(1, 15.0, 20.0, keep=True))
    found = Ledger(path).resume("key")
    assert found is not None
    assert (found[0].run, [one.n for one in found[1]]) == (run, [0, 1])
    ledger.append(run, crashed(2))
    ledger.finish(run, "patience", ())
    assert ledger.resume("key") is None
    events = query(path, f"SELECT event FROM run_events WHERE run = '{run}' ORDER BY number")
    assert [event for (event,) in events] == ["started", "resumed", "finished"]


def test_a_run_is_found_by_the_beginning_of_its_name(path: Path) -> None:
    start = datetime(2026, 11, 25, 10, 0, 0, 7, timezone.utc)
    moments = iter(start + timedelta(minutes=30 * n) for n in range(99))  # one for the name, one for the event
    with Ledger(path, clock=lambda: next(moments), token=lambda size: "ab" * size) as ledger:
        runs = [ledger.begin(run_record()).run for _ in range(7)]
        assert runs[0] == "20261125-100000-000007-ababab"
        assert ledger.run(runs[2]).run == ledger.run("20261125-12").run == runs[2]
        assert ledger.run("latest").run == runs[6]
        with pytest.raises(
            RequestError, match=r"'20261125-1' is the beginning of 7 runs; write more of the name: 20261125-16"
        ):
            ledger.run("20261125-1")
        for unknown, said in (("2025", "unknown run '2025'"), ("", "the name of the run is empty")):
            with pytest.raises(UnknownChoice, match=rf"{said}; known: latest, {runs[6]}, .*, …$"):
                ledger.run(unknown)
        with pytest.raises(UnknownChoice, match=rf"did you mean '{runs[0]}'[?] known: .*, {runs[2]}, {runs[0]}, …$"):
            ledger.run(runs[0].replace("000007", "000008"))  # an old run, which is not among the newest


def test_an_empty_ledger_is_read_without_making_a_file(ledger: Ledger, path: Path) -> None:
    assert ledger.runs() == ()
    assert ledger.resume("key") is None
    assert ledger.history(measured=True) == {}
    with pytest.raises(UnknownChoice, match="unknown run '1'; known: none"):
        ledger.run("1")
    assert not path.parent.exists()


def test_the_runs_in_one_line_each(ledger: Ledger) -> None:
    first = recorded(ledger, baseline_iteration(), raced(1, 15.0, 20.0, keep=True), crashed(2))
    ledger.finish(first, "patience", ())
    second = recorded(ledger)
    newest, oldest = ledger.runs()
    assert (newest.run, newest.iterations, newest.kept, newest.finished) == (second, 0, 0, None)
    assert (oldest.run, oldest.iterations, oldest.kept, oldest.stop_reason) == (first, 3, 1, "patience")
    assert (oldest.kernel, oldest.arch, oldest.gpu, oldest.measured) == ("rms_norm", "sm_90", "NVIDIA H200", True)


# What earlier runs say


def test_the_history_of_an_entry(ledger: Ledger) -> None:
    """The choice weighs what the ledger of earlier runs says."""
    runs = [
        recorded(ledger, baseline_iteration(), raced(1, 10.0, 20.0, keep=True), crashed(2)),
        recorded(ledger, baseline_iteration(), raced(1, 22.0, 20.0, keep=False), raced(2, 16.0, 20.0, keep=True)),
    ]
    history = ledger.history(measured=True)
    assert set(history) == {"A", "C"}
    assert (history["A"].tries, history["A"].keeps) == (3, 2)
    assert history["A"].gain == pytest.approx((20 / 10 * 20 / 16) ** 0.5, rel=0.02)
    assert (history["C"].tries, history["C"].keeps, history["C"].gain) == (1, 0, None)
    assert ledger.history(measured=True, arch="sm_90", kind="memory") == history
    assert ledger.history(measured=True, arch="sm_100") == ledger.history(measured=True, kind="compute") == {}
    assert ledger.history(measured=True, without=runs[1])["A"].tries == 1


def test_the_history_of_predicted_runs_is_apart(ledger: Ledger) -> None:
    recorded(ledger, baseline_iteration(), raced(1, 10.0, 20.0, keep=True))
    run = ledger.begin(run_record(measured=False)).run
    for n, us in enumerate((20.0, 16.0, 8.0)):
        ledger.append(run, predicted(n, us, keep=True))
    assert ledger.history(measured=True)["A"].tries == 1
    found = ledger.history(measured=False)["A"]
    assert (found.tries, found.keeps, found.gain) == (2, 2, pytest.approx((20 / 16 * 16 / 8) ** 0.5))


# What ends the process


CHILD = """
import sys
from pathlib import Path
from tests.made_runs import baseline_iteration, raced, run_record
from tilewright.ledger.ledger import Ledger
with Ledger(Path(sys.argv[1])) as ledger:
    run = ledger.begin(run_record(sys.argv[2])).run
    ledger.append(run, baseline_iteration())
    print(run, flush=True)
    for n in range(1, int(sys.argv[3])):
        ledger.append(run, raced(n, 15.0, 20.0, keep=n % 2 == 0, seed=n))
"""


def child(path: Path, key: str, iterations: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-c", CHILD, str(path), key, str(iterations)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def expected(n: int) -> Iteration:
    return raced(n, 15.0, 20.0, keep=n % 2 == 0, seed=n) if n else baseline_iteration()


def test_a_kill_at_any_time_leaves_whole_iterations(path: Path) -> None:
    """`kill -9` loses at most the iteration that runs, and the same key finds the rest."""
    delays = random.Random(4)
    for attempt in range(4):
        with child(path, f"key {attempt}", 1_000_000) as process:
            run = line(process)
            time.sleep(0.02 + 0.3 * delays.random())
            process.kill()
        assert process.returncode == -9
        with Ledger(path) as ledger:
            found = ledger.resume(f"key {attempt}")
            assert found is not None
            assert found[0].run == run
            assert found[1] == tuple(expected(n) for n in range(len(found[1])))
            ledger.append(run, expected(len(found[1])))
            assert query(path, f"SELECT count(*) FROM attempts WHERE run = '{run}'") == [(4 * len(found[1]),)]
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_kill_inside_a_transaction_leaves_nothing_of_the_iteration(path: Path) -> None:
    inside = CHILD[: CHILD.index("    for n")] + "\n".join(
        (
            "    import tilewright.ledger.ledger as module, os, signal",
            "    insert, calls = module.insert, [0]",
            "    def killing(*arguments):",
            "        calls[0] += 1",
            "        insert(*arguments)",
            "        if calls[0] == 5: os.kill(os.getpid(), signal.SIGKILL)",
            "    module.insert = killing",
            "    ledger.append(run, raced(1, 15.0, 20.0, keep=True))",
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", inside, str(path), "key"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == -9, done.stderr
    with Ledger(path) as ledger:
        assert ledger.iterations(done.stdout.strip()) == (baseline_iteration(),)
        assert query(path, "SELECT count(*) FROM attempts") == [(0,)]


def test_two_processes_append_to_two_runs(path: Path) -> None:
    with child(path, "a", 12) as one, child(path, "b", 12) as two:
        runs = line(one), line(two)
    assert (one.returncode, two.returncode) == (0, 0)
    with Ledger(path) as ledger:
        for run in runs:
            assert ledger.iterations(run) == tuple(expected(n) for n in range(12))


# What is in the way


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("my notes, not a database\n" * 100)
    with Ledger(path) as ledger, pytest.raises(StorageError, match="not a database; fix: move that file away"):
        ledger.begin(run_record())
    assert path.read_text().startswith("my notes")


def test_a_damaged_ledger_is_left_alone(ledger: Ledger, path: Path) -> None:
    run = recorded(ledger, baseline_iteration(), *(raced(n, 15.0, 20.0, keep=True) for n in range(1, 9)))
    ledger.close()
    content = path.read_bytes()
    path.write_bytes(content[:8192] + bytes(len(content) - 8192))
    with pytest.raises(StorageError, match="malformed; fix: move that file away, or restore"):
        ledger.iterations(run)


def test_a_newer_schema_is_left_alone(ledger: Ledger, path: Path) -> None:
    recorded(ledger, baseline_iteration())
    ledger.close()
    query_and_commit(path, "UPDATE tilewright_ledger_schema SET version = 8")
    content = path.read_bytes()
    with pytest.raises(StorageError, match=r"schema 8, this one has 7\); fix: update Tilewright"):
        ledger.begin(run_record())
    assert path.read_bytes() == content


def query_and_commit(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(sql)
    connection.close()


def test_the_ledger_and_the_store_of_tuned_kernels_are_not_taken_for_each_other(path: Path) -> None:
    with Ledger(path) as ledger:
        recorded(ledger, baseline_iteration())
    with pytest.raises(StorageError, match="database of another program"):
        Winners(path, strict=True).get("key")


def test_a_record_of_another_version_is_left_out_and_its_run_is_not_resumed(ledger: Ledger, path: Path) -> None:
    run = recorded(ledger)
    query_and_commit(
        path, f"""INSERT INTO iterations SELECT id, 0, '', '', '', '', 'PASS', 'keep', 'lossless', 1.0, NULL, NULL,
        '', '', '{{"n": 0, "outcomes": [], "warp": 9}}' FROM runs WHERE id = '{run}'"""
    )  # fmt: skip
    notes: list[str] = []
    ledger.note = notes.append
    assert ledger.iterations(run) == ()
    assert re.search(rf"iteration 0 of run {run} \(.*unknown field 'warp'.*left out; fix: .*that wrote it", notes[0])
    assert ledger.resume(ledger.run(run).key) is None
    assert re.fullmatch(rf"run {run} cannot be resumed \(.*unknown field 'warp'.*\): a new one starts", notes[1])


@pytest.mark.parametrize("kind", ["ledger", "store"])
def test_a_schema_that_is_not_utf_8_is_one_line(kind: str, path: Path, tmp_path: Path) -> None:
    """SQLite quotes the damaged statement in its own error, which Python cannot decode."""
    if kind == "ledger":
        with Ledger(path) as ledger:
            recorded(ledger, baseline_iteration())
    else:
        path = tmp_path / "tuned.db"
        Winners(path, strict=True).put(winner())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CR\xff\xfeTE TABLE"))
    with pytest.raises(StorageError, match="its schema is malformed; fix: move that file away, or restore") as raised:
        Ledger(path).runs() if kind == "ledger" else Winners(path, strict=True).all()
    assert "\n" not in str(raised.value)


# Where it lies


def test_the_home_is_ignored_by_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-1: what the run leaves in a repository is no untracked file of the user's."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "here"))
    assert default_path() == tmp_path / "here" / "ledger.db"
    with Ledger() as ledger:
        recorded(ledger, baseline_iteration())
    status = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True)
    assert status.stdout == ""


def test_a_directory_of_the_users_gets_no_gitignore(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "mine").mkdir()
    with Ledger(tmp_path / "mine" / "ledger.db") as ledger:
        recorded(ledger, baseline_iteration())
    assert not (tmp_path / "mine" / ".gitignore").exists()


def test_importing_does_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "import tilewright.ledger.ledger"], cwd=tmp_path, check=True)
    assert os.listdir(tmp_path) == []
