"""Jobs in forks of a process that stays alive: each has its own end, and the process outlives all of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import ended, until

from tilewright.errors import CompilerMissing, ToolFailed
from tilewright.tools import child
from tilewright.tools.resident import Resident

JOBS = """
import os, signal, subprocess, sys, time
from pathlib import Path

STARTED = []

def prepare():
    STARTED.append(os.getpid())

def work(folder):
    what = Path(folder, "job").read_text()
    Path(folder, "server").write_text(str(STARTED[0]))
    if what == "print":
        print("said", os.getcwd() == os.path.realpath(folder))
    elif what == "leak":
        STARTED.append(what)
        print(len(STARTED))
    elif what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "raise":
        raise ValueError("no such kernel")
    elif what == "loop":
        while True:
            pass
    elif what == "hang":
        other = subprocess.Popen(["sleep", "3600"])
        Path(folder, "other").write_text(str(other.pid))
        time.sleep(3600)
    elif what == "kill the server":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
"""


@pytest.fixture
def resident(tmp_path: Path) -> Iterator[Resident]:
    (tmp_path / "jobs.py").write_text(JOBS)
    made = Resident(tmp_path / "jobs.py", (), "the tester", "repair it")
    yield made
    if made._control is not None:
        made._control.close()


def done(resident: Resident, folder: Path, what: str, seconds: float = 5, patience: float = 60) -> child.Finished:
    folder.mkdir(exist_ok=True)
    (folder / "job").write_text(what)
    return resident.run(folder, seconds, patience)


def gone(process: int) -> bool:
    return until(lambda: ended(process))


def test_jobs_share_the_process_and_nothing_else(resident: Resident, tmp_path: Path) -> None:
    servers = set()
    for index in range(3):
        folder = tmp_path / str(index)
        assert done(resident, folder, "leak").stdout == "2\n"
        servers.add((folder / "server").read_text())
    assert len(servers) == 1 and str(os.getpid()) not in servers


def test_what_a_job_prints_is_kept(resident: Resident, tmp_path: Path) -> None:
    assert done(resident, tmp_path / "a", "print") == child.Finished(0, "said True\n", "")


def test_a_job_that_fails_or_crashes_ends_alone(resident: Resident, tmp_path: Path) -> None:
    raised = done(resident, tmp_path / "a", "raise")
    assert raised.returncode == 1 and "ValueError: no such kernel" in raised.stderr
    crashed = done(resident, tmp_path / "b", "crash")
    assert crashed.returncode == -signal.SIGSEGV and "killed by signal 11" in crashed.complaint("the tester")
    assert done(resident, tmp_path / "c", "print").returncode == 0


def test_the_budget_is_processor_time(resident: Resident, tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="the tester took longer than its budget of 1 s of processor time"):
        done(resident, tmp_path / "a", "loop", seconds=1, patience=60)


def test_a_job_that_hangs_is_killed_with_what_it_started(resident: Resident, tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="the tester did not end in 5 s of wall time"):
        done(resident, tmp_path / "a", "hang", seconds=5, patience=1)
    assert gone(int((tmp_path / "a" / "other").read_text()))


def test_kill_all_ends_the_jobs(resident: Resident, tmp_path: Path) -> None:
    def stop() -> None:
        until((tmp_path / "a" / "other").exists)
        child.kill_all()

    threading.Thread(target=stop).start()
    assert done(resident, tmp_path / "a", "hang").returncode == -signal.SIGKILL


def test_a_process_that_was_killed_is_started_again(resident: Resident, tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="its process ended before it had ended its job"):
        done(resident, tmp_path / "a", "kill the server")
    assert done(resident, tmp_path / "b", "print").returncode == 0


def test_what_does_not_start_says_how_to_repair_it(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("def prepare():\n    import no_such_package\n")
    broken = Resident(tmp_path / "jobs.py", (), "the tester", "repair it")
    with pytest.raises(CompilerMissing, match="does not start: ModuleNotFoundError: .*no_such_pack.*; fix: repair it"):
        done(broken, tmp_path / "a", "print")


def test_it_ends_with_the_process_that_started_it(resident: Resident, tmp_path: Path) -> None:
    done(resident, tmp_path / "a", "print")
    server = int((tmp_path / "a" / "server").read_text())
    assert resident._control is not None
    resident._control.close()
    assert gone(server)
