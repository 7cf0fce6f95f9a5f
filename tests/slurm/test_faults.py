"""What dies in an allocation, and what follows: finished steps are not repeated, and no process or job is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.remote.kit import GRACE, ROOT, wait_for, written_ops
from tests.slurm.client import WORKER
from tests.slurm.kit import Cluster, needs_slurm, spec
from tests.slurm.worker import noted, step

from tilewright.errors import MachineError
from tilewright.executors.slurm import Slurm
from tilewright.remote import job_spec
from tilewright.worker.messages import PrepareInputs
from tilewright.worker.outcome import Outcome

pytestmark = [needs_slurm, pytest.mark.usefixtures("environ")]
TASK = "import tilewright"
"""The worker loads nothing."""


class Run:
    """A run whose step `held` is under way."""

    def __init__(self, folder: Path, linger: float = 60.0, frozen: float = 60.0) -> None:
        self.folder, self.said = folder, []  # type: Path, list[str]
        (folder / "task").mkdir(exist_ok=True)
        task = folder / "task" / "ops.py"
        task.write_text(TASK)
        self.task = str(task)
        self.executor = self.again(linger, frozen)
        self.executor.open(self.task)
        self.pool = ThreadPoolExecutor(1)

    def again(self, linger: float = 60.0, frozen: float = 60.0) -> Slurm:
        """Returns another executor for the same run."""
        executor = Slurm(job_spec.read(), (sys.executable, WORKER, str(self.folder)), linger, frozen)
        executor.say = self.said.append
        return executor

    def hold(self) -> Future[Outcome[Any]]:
        """Finishes a step and begins another that lasts until `finish`."""
        assert self.executor.run(PrepareInputs("inputs", 0)).status == "PASSED"
        assert self.executor.run(step("first")).status == "PASSED"
        (self.folder / "hold").touch()
        held = self.pool.submit(self.executor.run, step("held"))
        wait_for(lambda: self.noted("began", "held"))
        return held

    def finish(self, held: Future[Outcome[Any]]) -> Outcome[Any]:
        (self.folder / "hold").unlink()
        outcome = held.result(GRACE)
        assert self.executor.run(step("last")).status == "PASSED"
        return outcome

    def noted(self, what: str, name: str) -> int:
        return noted(self.folder, what, name)

    def remark(self, words: str) -> bool:
        return any(words in each for each in self.said)

    def vanish(self) -> None:
        """Goes away as a client that was killed."""
        remote = self.executor.remote
        assert remote is not None and remote._connection is not None
        remote._ended.set()
        remote._connection.process.kill()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.executor.close()
    made.pool.shutdown()


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, number)


def test_a_killed_connection_is_made_again(run: Run, cluster: Cluster) -> None:
    held = run.hold()
    kill(cluster.connections())
    wait_for(lambda: run.remark("connecting again"))
    assert run.finish(held).status == "PASSED"
    assert run.noted("began", "held") == run.noted("began", "first") == 1


def test_a_killed_srun_of_the_resident_process_loses_no_step(run: Run, cluster: Cluster) -> None:
    """SLURM lets the step go on, as a rule."""
    held = run.hold()
    kill(cluster.keepers())
    assert run.finish(held).status == "PASSED"
    assert run.noted("ended", "held") == run.noted("began", "first") == 1


def test_a_killed_resident_process_is_replaced_and_its_step_repeated(run: Run, cluster: Cluster) -> None:
    held = run.hold()
    kill(cluster.agents())
    wait_for(lambda: run.noted("began", "held") == 2)
    assert run.noted("prepared", "inputs") == 2, "the step needs its inputs"
    assert run.finish(held).status == "PASSED"
    assert run.noted("began", "first") == 1 and len(cluster.jobs()) == 1


def test_a_client_and_a_resident_process_that_died_leave_what_was_finished(run: Run, cluster: Cluster) -> None:
    held = run.hold()
    (run.folder / "hold").unlink()
    assert held.result(GRACE).status == "PASSED"
    seed = run.executor.seed()
    run.vanish()
    kill(cluster.agents())
    run.executor = run.again()
    run.executor.open(run.task)
    assert run.remark("taking up the run") and run.executor.seed() == seed
    for each in (PrepareInputs("inputs", 0), step("first"), step("held")):
        assert run.executor.run(each).status == "PASSED"
    assert run.noted("began", "first") == run.noted("began", "held") == 1
    assert run.executor.run(step("first")).status == "PASSED"
    assert run.noted("began", "first") == 2, "a step that is asked twice runs twice"


@pytest.mark.long
def test_a_frozen_resident_process_is_replaced_and_a_step_that_freezes_it_is_a_hang(
    tmp_path: Path, cluster: Cluster
) -> None:
    run = Run(tmp_path, frozen=3.0)
    with run.executor as executor:
        assert executor.run(step("first")).status == "PASSED"
        hung = executor.run(step("freezing", 60_000), silence=2.0)
        assert hung.status == "HANG_DETECTED" and "twice, this machine said nothing for 5 s" in hung.reason
        assert executor.run(step("last"), silence=60.0).status == "PASSED"
        assert run.noted("began", "freezing") == 2 and len(cluster.jobs()) == 1


def test_a_hang_and_a_crash_of_the_worker_are_outcomes(run: Run, cluster: Cluster) -> None:
    assert run.executor.run(step("silent"), silence=0.3).status == "HANG_DETECTED"
    assert run.executor.run(step("deadly")).status == "FAILED"
    assert run.executor.run(step("first")).status == "PASSED"


def test_a_failed_node_is_replaced(run: Run, cluster: Cluster) -> None:
    held = run.hold()
    [job] = cluster.jobs()
    node = job.split()[2]
    cluster.fail_node(node)
    try:
        wait_for(lambda: run.noted("began", "held") == 2)
        assert run.remark("its node failed (NODE_FAIL); the run asks for another")
        assert run.finish(held).status == "PASSED"
        assert run.noted("began", "first") == 1
    finally:
        run.executor.close()
        cluster.mend_node(node)


def test_a_killed_slurmd_that_comes_back_changes_nothing(run: Run, cluster: Cluster) -> None:
    held = run.hold()
    [job] = cluster.jobs()
    node = job.split()[2]
    cluster.daemons[node].kill()
    cluster.daemons[node].wait()
    cluster.start_node(node)
    assert run.finish(held).status == "PASSED"
    assert run.noted("began", "held") == 1


def test_a_preempted_allocation_is_replaced(run: Run, cluster: Cluster) -> None:
    held = run.hold()
    wanted = ("--parsable", "--output=/dev/null", "-p", "urgent", "-N2", "--exclusive", "--wrap=sleep 600")
    urgent = cluster.say("sbatch", *wanted).strip()
    wait_for(lambda: run.remark("a job with a higher priority took its place (PREEMPTED)"))
    cluster.say("scancel", urgent)
    wait_for(lambda: run.noted("began", "held") == 2)
    assert run.finish(held).status == "PASSED"
    assert run.noted("began", "first") == 1


@pytest.mark.long
def test_a_requeued_job_is_waited_for_and_the_run_goes_on_in_it(run: Run, cluster: Cluster) -> None:
    held, jobs = run.hold(), cluster.submitted()
    job = cluster.jobs()[0].split()[0]
    cluster.requeue(job, lambda: run.remark(f"job {job} was put back into the queue"))
    wait_for(lambda: run.noted("began", "held") == 2)
    assert run.finish(held).status == "PASSED"
    assert run.noted("began", "first") == 1 and cluster.submitted() == jobs
    assert [each.split()[0] for each in cluster.jobs()] == [job]


def test_a_cancelled_job_ends_the_run_in_one_line(run: Run, cluster: Cluster) -> None:
    held = run.hold()
    cluster.say("scancel", cluster.jobs()[0].split()[0])
    with pytest.raises(MachineError, match=r"ended: somebody cancelled job \d+; fix: ask who.*goes on with what"):
        held.result(GRACE)


def test_an_interrupted_command_releases_the_allocation_at_once(tmp_path: Path, cluster: Cluster) -> None:
    written_ops(tmp_path, TASK)
    client = subprocess.Popen([sys.executable, "-m", "tests.slurm.client", str(tmp_path), "1000", "600"], cwd=ROOT)
    try:
        wait_for(lambda: noted(tmp_path, "began", "s1"))
        client.send_signal(signal.SIGINT)
        assert client.wait(GRACE) == 130
        wait_for(lambda: not cluster.left())
    finally:
        client.kill()
        client.wait()


def test_a_client_that_does_not_come_back_leaves_nothing(tmp_path: Path, cluster: Cluster) -> None:
    run = Run(tmp_path, linger=0.5)
    assert run.executor.run(step("first")).status == "PASSED"
    run.vanish()
    wait_for(lambda: not cluster.left())


@pytest.mark.long
def test_a_second_client_is_told_who_uses_the_run_and_gets_no_allocation(run: Run, cluster: Cluster) -> None:
    assert run.executor.run(step("first")).status == "PASSED"
    jobs = cluster.jobs()
    second = run.again()
    with pytest.raises(MachineError, match=rf"in use by .*process {os.getpid()}; fix: wait"):
        second.open(run.task)
    second.close()
    assert cluster.jobs() == jobs and len(jobs) == 1


@pytest.mark.long
def test_an_allocation_that_another_job_spec_asked_for_is_not_used(run: Run, cluster: Cluster) -> None:
    """It ends, unless a client is connected to it. What was finished there is not repeated."""
    for each in (PrepareInputs("inputs", 0), step("first")):
        assert run.executor.run(each).status == "PASSED"
    [lingering] = cluster.jobs()
    spec(cluster.folder, partition="urgent")
    try:
        second = run.again()
        with pytest.raises(MachineError, match=r"another command uses this run in job \d+, which another job_spec"):
            second.open(run.task)
        assert cluster.jobs() == [lingering]
        run.vanish()
        run.executor = run.again()
        run.executor.open(run.task)
        assert run.remark("is ended: another job_spec.json asked for it") and run.remark("taking up the run")
        for each in (PrepareInputs("inputs", 0), step("first")):
            assert run.executor.run(each).status == "PASSED"
        assert run.noted("began", "first") == 1
        assert cluster.say("squeue", "-h", "-o", "%P").split() == ["urgent"]
    finally:
        spec(cluster.folder)


@pytest.mark.skipif(os.getuid() != 0, reason="needs to mount a small file system, which only root may")
def test_a_full_disk_over_there_loses_no_step(tmp_path: Path, cluster: Cluster) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(small)], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system")
    try:
        spec(cluster.folder, remote_work_dir=str(small))
        run = Run(tmp_path)
        with run.executor as executor, (small / "filling").open("wb", buffering=0) as filling:
            assert executor.run(step("first")).status == "PASSED"
            with suppress(OSError):
                while True:
                    filling.write(b"x" * 4096)
            assert executor.run(step("second")).status == "PASSED"
        wait_for(lambda: not cluster.left())
    finally:
        spec(cluster.folder)
        subprocess.run(["umount", "-l", str(small)], check=True)
