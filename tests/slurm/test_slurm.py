"""Runs in an allocation of a real SLURM on loopback, with clients, steps, workers and nodes that die.

The GPUs are simulated (`tests.remote.worker`); SLURM, the resident process, compilers and the ledger are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.kit import Loopback, OtherMachineContract, Tuning, needs_sshd, steps, wait_for, written_ops
from tests.slurm.kit import Cluster, needs_slurm, spec
from tests.slurm.tuning import executor
from tests.tune.test_tune import OPS as FOUR

from tilewright.cli.main import main
from tilewright.executors.base import Executor

pytestmark = [needs_slurm, pytest.mark.usefixtures("environ")]
OPS = FOUR.replace("(None, 2)", "(None,)")
"""Two configurations."""


@pytest.fixture
def loop(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """The login node, where SLURM's programs find the cluster."""
    (tmp_path / "ssh").mkdir()
    made = Loopback(tmp_path / "ssh", f"SetEnv SLURM_CONF={cluster.configuration}\n")
    made.start()
    monkeypatch.setenv("TILEWRIGHT_SSH", made.environ["TILEWRIGHT_SSH"])
    yield made
    made.stop()


@pytest.fixture
def ops(tmp_path: Path) -> str:
    return written_ops(tmp_path, OPS)


class TestSlurm(OtherMachineContract):
    def make(self) -> Executor:
        return executor(self.folder)


# A run of tune ------------------------------------------------------------------------------------


def tuning(ops: str, folder: Path) -> Tuning:
    return Tuning(ops, folder, module="tests.slurm.tuning")


@pytest.mark.long
def test_a_killed_client_is_taken_up_again_in_one_allocation(cluster: Cluster, ops: str, tmp_path: Path) -> None:
    run, before = tuning(ops, tmp_path), cluster.submitted()
    process = run.start()
    wait_for(run.racing)
    process.kill()
    process.communicate()
    run.hold.unlink()
    assert run.winners(run.start()) == ["even TILE=32,occupancy=auto"]
    assert "taking up the run on this machine again" in run.said
    assert steps(tmp_path, "RaceField") == 1, "the race that the killed client began is not repeated"
    assert cluster.submitted() == before + 1


@needs_sshd
def test_the_login_node_is_reached_by_ssh(
    cluster: Cluster, loop: Loopback, ops: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a whole command runs in an allocation, on the user's files."""
    spec(cluster.folder, ssh_host="loop")
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.chdir(Path(ops).parent)
    before, logins = cluster.submitted(), loop.logins()
    assert main(["check", "ops.py", "--quick", "--on", "slurm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "scale"
    assert (cluster.submitted(), loop.logins()) == (before + 1, logins + 1)
    assert main(["tune", "ops.py", "--on", "slurm:main", "--no-store"]) == 3
    assert "loop has no GPU to measure on" in capsys.readouterr().err
    wait_for(lambda: not cluster.left())
