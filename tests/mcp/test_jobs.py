"""Jobs: they outlive the server, end with their children, and a lost one is told from a running one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import until
from tests.profile.made_traces import eager_training

from tilewright.errors import RequestError, StorageError, UnknownChoice
from tilewright.mcp.jobs import Jobs, write
from tilewright.mcp.replies import CheckReply, Job, ProfileReply
from tilewright.mcp.work import work

ROOT = Path(__file__).parents[2]
NORM = str(ROOT / "examples" / "rms_norm.py")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    eager_training().write(tmp_path / "trace.json.gz")
    return str(tmp_path / "trace.json.gz")


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    for name in jobs.names():
        jobs.cancel(name)


def finished(jobs: Jobs, name: str) -> Job:
    assert until(lambda: jobs.job(name).state != "running")
    return jobs.job(name)


def at_work() -> list[int]:
    """The processes of this test: those whose environment has its TILEWRIGHT_HOME."""
    home, found = f"TILEWRIGHT_HOME={os.environ['TILEWRIGHT_HOME']}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if home in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_job_outlives_the_process_that_started_it(jobs: Jobs, trace: str) -> None:
    code = f"from tilewright.mcp.jobs import Jobs; print(Jobs().start('profile', {{'traces': [{trace!r}]}}))"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    job = finished(jobs, name)  # another server, of the same folder
    assert job.state == "done" and jobs.job() == job
    assert isinstance(job.result, ProfileReply)
    assert job.result.gpus[0].figures["compute [share]"] == pytest.approx(0.746, abs=1e-3)
    assert job.result.gpus[0].kernels[0].share > 0.1 and job.result.findings[0].advice
    assert job.file and json.loads(Path(job.file).read_text())["raw"]  # the whole profile
    assert until(lambda: at_work() == [])


def test_a_check_has_its_verdict(jobs: Jobs) -> None:
    asked = {"task": NORM, "workloads": ["odd"], "engine": "interpreter", "quick": True}
    job = finished(jobs, jobs.start("check", asked))
    assert isinstance(job.result, CheckReply) and job.arguments == asked, job
    assert job.result.verdict == job.result.tasks[0].verdict == "correct on reduced shapes"
    assert job.result.tasks[0].cases == 2 and job.progress == "" and job.seconds > 0


def test_a_cancelled_job_ends_with_its_children_and_starts_again(jobs: Jobs) -> None:
    name = jobs.start("tune", {"task": NORM, "arch": "sm_90", "workloads": ["odd"]})
    assert until(lambda: "compile" in jobs.job(name).progress)
    with pytest.raises(RequestError, match="still runs; job_wait waits"):
        jobs.again(name)
    ended = jobs.start("profile", {"traces": ["gone.json"]})
    assert jobs.cancel(ended).state == "cancelled"
    waiting = jobs.again(ended)
    assert until(lambda: "waiting for other jobs" in jobs.job(waiting).progress)  # it would disturb the first
    assert jobs.cancel(name).state == "cancelled"
    assert finished(jobs, waiting).state == "failed"  # its turn came; the trace does not exist
    assert until(lambda: at_work() == [])
    assert jobs.cancel(name).state == "cancelled"  # and stays so


def test_a_killed_job_is_lost_and_says_what_to_do(jobs: Jobs) -> None:
    name = jobs.start("doctor", {})
    folder = Path(jobs.job(name).log).parent
    os.killpg(int((folder / "pid").read_text()), signal.SIGKILL)
    job = finished(jobs, name)
    assert job.state == "lost" and "job_start starts it again" in job.next


def test_another_folder_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no request.json, so it is not the folder of a job"):
        work(tmp_path)


def test_a_job_that_ignores_its_end_is_killed(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(3600)"
    )
    monkeypatch.setattr("tilewright.mcp.jobs.TERM_SECONDS", 0.3)
    name = jobs.start("inspect", {"task": str(tmp_path / "deaf.py")})
    assert until(lambda: "deaf" in Path(jobs.job(name).log).read_text())
    assert jobs.cancel(name).state == "cancelled"


def outcome_of(tmp_path: Path, verb: str, **arguments: Any) -> dict[str, Any]:
    """Does a job in this process."""
    write(tmp_path / "request.json", {"verb": verb, "arguments": arguments, "started": 0.0})
    work(tmp_path)
    return json.loads((tmp_path / "outcome.json").read_text())  # type: ignore[no-any-return]


def test_what_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job"
    job.mkdir()
    assert outcome_of(job, "check", task=NORM, workloads=["od"])["error"].startswith(
        "unknown workload 'od'; did you mean 'odd'? "
    )
    (tmp_path / "ops.py").write_text("import sys\nsys.exit('no licence')")
    assert "no licence" in outcome_of(job, "tune", task=str(tmp_path / "ops.py"))["error"]
    (tmp_path / "train.py").write_text("")
    assert "needs a GPU" in outcome_of(job, "profile", command=["python", str(tmp_path / "train.py")])["error"]
    ours = outcome_of(job, "tune", task=NORM, never_heard_of=1)
    assert "a mistake in Tilewright; its traceback is in" in ours["error"] and "Traceback" in capsys.readouterr().err


def test_a_result_of_another_version_is_named_and_kept(jobs: Jobs, tmp_path: Path) -> None:
    name = jobs.start("profile", {"traces": ["gone.json"]})
    folder = Path(finished(jobs, name).log).parent
    write(folder / "outcome.json", {"state": "done", "ended": 0.0, "reply": {"colour": "green"}})
    job = jobs.job(name)
    assert job.result is None and "another version of Tilewright wrote this result" in str(job.error)


def test_an_unknown_job_and_an_unwritable_folder_are_named(jobs: Jobs, tmp_path: Path) -> None:
    name = jobs.start("profile", {"traces": ["gone.json"]})
    with pytest.raises(UnknownChoice, match=f"unknown job 'profil'; known: {name}"):
        jobs.job("profil")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write .*file.*; set TILEWRIGHT_HOME"):
        Jobs(tmp_path / "file" / "jobs").start("doctor", {})
