"""Runs on a real Ray cluster of this machine, whose GPUs are made up, with workers and clients that are killed.

Ray, its actors, the files that it brings, compilers and the ledger are real; the worker process is that of the tests of
ssh, with a simulated clock.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray_cluster.kit import RayCluster, needs_ray
from tests.ray_cluster.tuning import executor
from tests.remote.kit import OtherMachineContract, Tuning, steps, wait_for, written_ops
from tests.tune.test_tune import OPS as FOUR

from tilewright.cli.main import main
from tilewright.errors import NoGpu, RequestError
from tilewright.executors.base import Executor
from tilewright.executors.ray import Ray
from tilewright.worker.messages import Advanced, Hello, PrepareInputs

pytestmark = [needs_ray, pytest.mark.timeout(300)]
OPS = FOUR.replace("(None, 2)", "(None,)")
"""Two configurations."""
ROOT = Path(__file__).parents[2]
GPUS = 3
WAIT = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    made = RayCluster(GPUS)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def _environ(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def ops(tmp_path: Path) -> str:
    return written_ops(tmp_path, OPS)


class TestRay(OtherMachineContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: RayCluster) -> None:
        self.cluster = cluster

    def make(self) -> Executor:
        return executor(self.cluster.address, self.folder)


def test_a_lost_worker_is_replaced_and_its_step_runs_again(cluster: RayCluster, ops: str, tmp_path: Path) -> None:
    said: list[str] = []
    with executor(cluster.address, tmp_path) as run:
        run.say = said.append
        run.open(ops)
        assert run.run(PrepareInputs("even", 1)).status == "PASSED"
        (actor,) = cluster.workers()
        (below,) = cluster.worker_processes()
        os.kill(actor, signal.SIGKILL)
        assert run.run(Hello()).status == "PASSED"
        assert len(said) == 1 and "was lost, and its step runs again" in said[0] and "\n" not in said[0]
        assert cluster.workers() != [actor]
        wait_for(lambda: not Path(f"/proc/{below}").exists())
    assert (tmp_path / "steps").read_text().split() == ["PrepareInputs", "PrepareInputs", "Hello"]
    wait_for(lambda: not cluster.workers())


def test_a_hang_is_an_outcome_and_progress_is_told(cluster: RayCluster, ops: str, tmp_path: Path) -> None:
    seen: list[Advanced] = []
    with executor(cluster.address, tmp_path) as run:
        run.open(ops)
        outcome = run.run(PrepareInputs("hangs", 0), silence=2.0, on_progress=seen.append)
        assert (outcome.status, outcome.answer) == ("HANG_DETECTED", None) and "kernel hangs" in outcome.reason
        assert run.run(Hello()).status == "PASSED"


def test_each_gpu_of_the_cluster_is_one_more_executor(cluster: RayCluster, ops: str, tmp_path: Path) -> None:
    said: list[str] = []
    with executor(cluster.address, tmp_path) as first:
        first.say = said.append
        first.place(ops)
        assert [len(cluster.workers()), len(first.others(0))] == [1, 0]
        others = first.others(5)
        assert len(others) == GPUS - 1 and len(cluster.workers()) == GPUS and not said
        for each in (first, *others):
            each.open(ops)
            assert each.run(Hello()).status == "PASSED"
        others[0].close()
        wait_for(lambda: len(cluster.workers()) == GPUS - 1)
        for each in others:
            each.close()
    wait_for(lambda: not cluster.workers())


def test_from_outside_the_cluster_through_its_client_port(cluster: RayCluster, ops: str, tmp_path: Path) -> None:
    with executor(f"ray://127.0.0.1:{cluster.client_port}", tmp_path) as run:
        run.open(ops)
        assert run.run(Hello()).status == "PASSED"
        os.kill(cluster.workers()[0], signal.SIGKILL)
        assert run.run(Hello()).status == "PASSED"
        (other,) = run.others(1)
        other.close()
    wait_for(lambda: not cluster.workers())


# A run of tune ------------------------------------------------------------------------------------


def tuning(cluster: RayCluster, ops: str, folder: Path) -> Tuning:
    run = Tuning(ops, folder)
    run.command = [sys.executable, "-m", "tests.ray_cluster.tuning", cluster.address, ops, str(folder)]
    run.command.append(str(folder / "runs.db"))
    return run


def test_tune_shares_the_workloads_and_a_killed_worker_loses_nothing(
    cluster: RayCluster, ops: str, tmp_path: Path
) -> None:
    run = tuning(cluster, ops, tmp_path)
    process = run.start()
    wait_for(lambda: steps(tmp_path, "RaceField") == 2, WAIT)
    assert len(cluster.workers()) == 2, "one for each workload"
    os.kill(cluster.workers()[0], signal.SIGKILL)
    wait_for(lambda: steps(tmp_path, "RaceField") == 3, WAIT)
    run.hold.unlink()
    out, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 0, errors
    assert sorted(out.splitlines()) == ["even TILE=32,occupancy=auto", "odd TILE=32,occupancy=auto"]
    assert errors.count("was lost, and its step runs again") == 1
    wait_for(lambda: not cluster.workers())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_command_ends_its_workers(
    number: signal.Signals, cluster: RayCluster, ops: str, tmp_path: Path
) -> None:
    run = tuning(cluster, ops, tmp_path)
    process = run.start()
    wait_for(run.racing, WAIT)
    below = cluster.worker_processes()
    process.send_signal(number)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == (130 if number == signal.SIGINT else -number) and "Traceback" not in errors
    wait_for(lambda: not cluster.workers() and not any(Path(f"/proc/{pid}").exists() for pid in below))
    assert run.hold.exists(), "the race was still running"


# Whole commands -----------------------------------------------------------------------------------


def test_check_and_doctor_run_over_there_on_the_users_files(
    cluster: RayCluster, ops: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(ops).parent)
    where = f"ray:{cluster.address}"
    Path(ops).write_text(OPS.replace("t * 2", "t * 3"))
    assert main(["check", "ops.py", "--quick", "--on", where]) == 1
    assert "incorrect" in capsys.readouterr().out
    assert main(["doctor", "--on", where, "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)["checks"]]
    assert names[:3] == ["cluster", "worker", "Python"] and "GPU" in names
    with pytest.raises(RequestError, match="--on ray runs tune, check and doctor, not optimize; fix: "):
        Ray(cluster.address).command(["optimize", "ops.py"], "ops.py")
    wait_for(lambda: not cluster.workers())


# Bad input ----------------------------------------------------------------------------------------


def test_a_cluster_without_gpus_is_named(cluster: RayCluster, ops: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The made-up GPUs have no driver."""
    assert main(["tune", ops, "--on", f"ray:{cluster.address}", "--no-store"]) == 3
    assert (
        capsys.readouterr()
        .err.strip()
        .splitlines()[-1]
        .endswith(
            "has no GPU to measure on; fix: name a machine with a GPU, or leave out --on, which predicts without one"
        )
    )
    with Ray(cluster.address) as run, pytest.raises(NoGpu):
        run.place(ops).the_gpu()


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("ray:127.0.0.1:1", "the Ray cluster at 127.0.0.1:1 does not answer (Connection refused); fix: "),
        ("ray://127.0.0.1:1", "the Ray cluster at ray://127.0.0.1:1 does not answer (Connection refused); fix: "),
        ("ray:a b", "'a b' is no address of a Ray cluster; fix: "),
    ],
)
def test_a_bad_address_is_one_line(
    where: str, line: str, ops: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["tune", ops, "--on", where, "--no-store"]) in (2, 3)
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and line in said[0]


def test_the_end_of_the_cluster_is_one_line(ops: str, tmp_path: Path) -> None:
    """In a process of its own, because Ray ends a process whose cluster has ended."""
    ended = RayCluster(1)
    try:
        ended.start()
        run = tuning(ended, ops, tmp_path)
        process = run.start()
        wait_for(run.racing, WAIT)
        ended.stop()
        _, errors = process.communicate(timeout=WAIT)
        assert process.returncode == 3 and "Traceback" not in errors
        assert f"error: the Ray cluster at {ended.address} has ended (Connection refused); fix: " in errors
    finally:
        ended.stop()


def test_ray_in_use_by_the_program_is_refused(cluster: RayCluster, ops: str, tmp_path: Path) -> None:
    with executor(cluster.address, tmp_path) as first:
        first.place(ops)
        with pytest.raises(RequestError, match="this process uses Ray already"):
            executor(cluster.address, tmp_path).place(ops)
