"""Allocations that SLURM refuses, delays or ends: one line each, with what to do."""

from __future__ import annotations

import shutil
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.remote.kit import GRACE, wait_for, written_ops
from tests.remote.tuning import H200
from tests.slurm.kit import Cluster, needs_slurm, spec

from tilewright.errors import MachineError
from tilewright.executors.slurm import Slurm
from tilewright.hardware.machine import OtherMachine
from tilewright.remote import files, job_spec
from tilewright.remote.allocation import Allocated

pytestmark = [needs_slurm, pytest.mark.usefixtures("environ")]


@pytest.fixture
def task(tmp_path: Path) -> str:
    return written_ops(tmp_path, "import tilewright")


def opened(cluster: Cluster, task: str, **values: Any) -> list[str]:
    """Tries to open a task. Returns what was said, with the error at the end."""
    spec(cluster.folder, **values)
    executor, said = Slurm(job_spec.read()), []  # type: Slurm, list[str]
    executor.say = said.append
    with executor, pytest.raises(MachineError) as error:
        executor.open(task)
    assert "\n" not in str(error.value)
    return [*said, str(error.value)]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"partition": "mian"}, "unknown partition 'mian'; did you mean 'main'? known: main, urgent, closed"),
        ({"partition": "closed"}, "account (your default) may not use partition closed; fix: account or partition"),
        ({"gpus_per_node": 3}, "partition main has no node with 3 GPUs and what else is asked for; fix: gpus_per_node"),
        ({"walltime": "2:00:00"}, "walltime 2:00:00 is longer than partition main allows; fix: a shorter walltime"),
        ({"python": "/bin/false"}, "/bin/false (python in job_spec.json) is no Python"),
    ],
)
def test_a_refused_allocation_is_one_line(values: dict[str, Any], line: str, cluster: Cluster, task: str) -> None:
    [said] = opened(cluster, task, **values)
    assert line in said


def test_a_resident_process_that_cannot_start_is_one_line(cluster: Cluster, task: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    said = opened(cluster, task, python=str(tmp_path / "bare" / "bin" / "python"))[-1]
    assert said.endswith("is FAILED (NonZeroExitCode, exit code 92:0): ModuleNotFoundError: No module named 'numpy'")


def test_a_machine_without_slurm_is_one_line(
    cluster: Cluster, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "git", "uname"):
        program = shutil.which(name)
        assert program is not None
        (tmp_path / "bin" / name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    [said] = opened(cluster, task)
    assert "there is no SLURM on" in said and "fix: name a login node as ssh_host in job_spec.json" in said


@contextmanager
def reserved(cluster: Cluster) -> Iterator[None]:
    """All nodes are reserved for somebody else in 20 minutes, for an hour."""
    cluster.say(
        "scontrol", "create", "reservation", "ReservationName=held", "StartTime=now+20minutes", "Duration=60",
        "Nodes=ALL", "Users=root", "Flags=MAINT",
    )  # fmt: skip
    try:
        yield
    finally:
        cluster.say("scontrol", "delete", "ReservationName=held")


def test_a_long_queue_says_which_walltime_would_start_earlier(cluster: Cluster, task: str) -> None:
    with reserved(cluster):
        [said] = opened(cluster, task, walltime="60", immediate=True)
    assert "the queue is long: SLURM expects the start in" in said
    assert "earlier would start: walltime 15 minutes (at once)" in said
    assert "fix: change that in job_spec.json; or remove immediate" in said


def test_a_client_that_goes_away_leaves_no_job_in_the_queue(cluster: Cluster, task: str) -> None:
    spec(cluster.folder, walltime="60")
    executor, said = Slurm(job_spec.read()), []  # type: Slurm, list[str]
    executor.say = said.append
    with reserved(cluster), ThreadPoolExecutor(1) as pool:
        opening = pool.submit(executor.open, task)
        wait_for(lambda: [job for job in cluster.jobs() if "PENDING" in job])
        assert said and "earlier would start: walltime 15 minutes" in said[0]
        executor.close()
        wait_for(lambda: not cluster.jobs())
        with pytest.raises(MachineError):
            opening.result(GRACE)


@pytest.mark.parametrize(
    ("state", "code", "line"),
    [
        ("TIMEOUT", "0:0", "the walltime 10 of job 7 is over; fix: a longer walltime; the same command goes on"),
        ("CANCELLED", "0:15", "somebody cancelled job 7; fix: ask who"),
        ("OUT_OF_MEMORY", "0:125", "job 7 used more memory than it had; fix: cpus_per_task"),
        ("FAILED", "91:0", "the compute node n1 does not see the files that were brought; fix: set remote_work_dir"),
        ("NODE_FAIL", "0:0", "5 allocations in a row were lost, the last one because its node failed"),
    ],
)
def test_the_end_of_an_allocation_is_one_line(state: str, code: str, line: str) -> None:
    run = Allocated(job_spec.read(), files.nothing())
    run.job, run._replaced = "7", 9
    found = {"state": state, "code": code, "node": "n1", "reason": "", "log": ""}
    with pytest.raises(MachineError, match=line):
        run._check(found)


def test_a_run_does_not_go_on_with_another_model_of_gpu() -> None:
    run = Allocated(job_spec.read(), files.nothing())
    run.place = OtherMachine("n1", H200, "580.0", "x86_64")
    run._renew(replace(run.place, name="n2"))
    with pytest.raises(
        MachineError, match="n2 has NVIDIA A100, and the run began on NVIDIA H200; fix: ask for one model"
    ):
        run._renew(OtherMachine("n2", replace(H200, name="NVIDIA A100"), "580.0", "x86_64"))
