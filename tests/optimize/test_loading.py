"""Versions that are loaded at the same time: what ends their loading, and what a resumed run makes of a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.made_runs import run_record
from tests.optimize.kit import H200, SCALE
from tests.processes import PATIENCE, until

from tilewright.candidate.client import Candidates
from tilewright.ledger.ledger import Ledger
from tilewright.optimize.attempting import Attempt, Builder, Request, Variant
from tilewright.optimize.loading import unrecorded
from tilewright.optimize.time_limit import TimeUp, within
from tilewright.task.loading import load_task, where_is

ROOT = Path(__file__).parents[2]
VALUES = {"three": "* 3", "four": "* 4", "five": "* 5", "waits": "* 6", "waits too": "* 7"}


class Versions:
    """Builds versions of `scale` in a folder. The loading of those that wait ends when ``gate`` is no pipe any more."""

    def __init__(self, folder: Path, candidates: Candidates, ledger: Ledger, run: str, jobs: int = 2) -> None:
        self.file, self.gate = folder / "ops.py", folder / "gate"
        self.file.write_text(SCALE)
        task = load_task(str(self.file))
        self.builder = Builder(
            candidates, task, where_is(task), H200, task.selected(None), folder / "versions", jobs, 60.0,
            partial(ledger.loading, run), ledger.suspects(run),
        )  # fmt: skip

    def build(self, *names: str) -> tuple[list[Variant], list[Attempt]]:
        return self.builder.build([self._request(name) for name in names])

    def _request(self, name: str) -> Request:
        waits = f"\nopen({str(self.gate)!r}).read()\n" if "waits" in name else ""
        return name, name, {self.file: SCALE.replace("* 2", VALUES[name], 1) + waits}


@pytest.fixture
def versions(tmp_path: Path) -> Iterator[Versions]:
    os.mkfifo(tmp_path / "gate")
    with Ledger(tmp_path / "ledger.db") as ledger, Candidates((), PATIENCE) as candidates:
        yield Versions(tmp_path, candidates, ledger, ledger.begin(run_record()).run)


def events(folder: Path) -> list[tuple[str, int]]:
    connection = sqlite3.connect(folder / "ledger.db")
    try:
        return connection.execute("SELECT event, together FROM loads ORDER BY number").fetchall()
    finally:
        connection.close()


def _after(moment: Callable[[], bool]) -> None:
    assert until(moment)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("how", ["signal", "exception", "ctrl-c"])
def test_a_build_that_is_interrupted_ends_at_once_and_the_next_gets_its_own_answers(
    versions: Versions, tmp_path: Path, how: str
) -> None:
    names = ("three", "waits", "four", "waits too", "five")
    candidates, raised = versions.builder.candidates, list[BaseException]()

    def interrupted() -> None:
        try:
            with within(1.0 if how != "ctrl-c" else PATIENCE):
                versions.build(*names)
        except BaseException as error:
            raised.append(error)

    began = time.monotonic()
    if how == "exception":
        versions.builder = replace(versions.builder, recorded=unrecorded)  # a ledger stays in its thread
        (thread := threading.Thread(target=interrupted)).start()
        thread.join(PATIENCE)
    else:
        waiting = threading.Thread(target=_after, args=(lambda: len(candidates._alive) == 3,))
        if how == "ctrl-c":
            waiting.start()
        interrupted()
    assert [type(error) for error in raised] == [KeyboardInterrupt if how == "ctrl-c" else TimeUp]
    assert time.monotonic() - began < PATIENCE / 4, "it does not wait for the answers"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loading")]
    assert not any(process.asked for process in candidates._alive.values())
    found = [event for event, _ in events(tmp_path)]
    assert found.count("loading") == found.count("ended"), "it is no version's fault"

    versions.gate.unlink()
    versions.gate.touch()
    built, dropped = versions.build(*names)
    assert ([one.value for one in built], dropped) == (list(names), [])
    assert len({one.identity for one in built}) == len(names)
    alone, _ = versions.build("four")
    assert alone[0].identity == built[2].identity


@pytest.mark.long
def test_after_a_kill_suspects_are_loaded_alone_and_the_culprit_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with Ledger(tmp_path / "ledger.db") as ledger:
        run = ledger.begin(run_record()).run
    names = ("three", "waits", "waits too")

    together = [("loading", 1), ("loading", 1), ("ended", 1), ("loading", 1)]
    _kill(tmp_path, run, names, lambda: events(tmp_path) == together)
    one_after_the_other = [("loading", 0), ("ended", 0), ("loading", 0)]
    _kill(tmp_path, run, names, lambda: events(tmp_path) == together + one_after_the_other)

    (tmp_path / "gate").unlink()
    (tmp_path / "gate").touch()
    with Ledger(tmp_path / "ledger.db") as ledger, Candidates(()) as candidates:
        built, dropped = Versions(tmp_path, candidates, ledger, run).build(*names)
    assert [one.value for one in built] == ["three", "waits too"]
    assert [(one.value, one.reason.partition(" (")[0]) for one in dropped] == [
        ("waits", "does not load: the process was killed while it loaded this version")
    ]


def _kill(folder: Path, run: str, names: tuple[str, ...], moment: Callable[[], bool]) -> None:
    """Builds in another process, and kills the process at a moment."""
    program = f"""from pathlib import Path
from tests.optimize.test_loading import Candidates, Ledger, Versions
folder = Path({str(folder)!r})
with Ledger(folder / "ledger.db") as ledger, Candidates(()) as candidates:
    Versions(folder, candidates, ledger, {run!r}).build(*{names!r})
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        assert until(lambda: moment() or process.poll() is not None) and process.poll() is None
    finally:
        process.kill()
        process.wait()
