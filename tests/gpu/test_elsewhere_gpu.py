"""`tune --on`: what goes through an ssh server or an allocation of SLURM is measured on the GPU, as it is here.

Server and cluster are real, and on loopback. The interpreter over there is this one, so its packages must be on its own
path, not only on PYTHONPATH.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.remote.kit import Loopback, needs_sshd
from tests.slurm.kit import Cluster, needs_slurm, spec

from tilewright.cli.main import main

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "swiglu.py")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    made.start()
    monkeypatch.setenv("SLURM_CONF", made.environ["SLURM_CONF"])
    monkeypatch.setenv("TILEWRIGHT_JOB_SPEC", str(spec(made.folder)))
    yield made
    made.stop()


def tuned(capsys: pytest.CaptureFixture[str], *on: str) -> dict[str, Any]:
    """Returns the only workload's result, and the GPU that measured it."""
    assert main(["tune", EXAMPLE, "--workload", "16384x4096", "--no-store", "--json", *on]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["measured"] is True
    (workload,) = result["workloads"]
    return {**workload, "gpu": result["machine"]["gpu"]}


def agree(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Fails unless both were measured on one model of GPU, and each winner is among those that tie in the other run."""
    assert one["gpu"] == other["gpu"]
    best = one["best"]["config"]
    assert best == other["best"]["config"] or best in other["tied"] or other["best"]["config"] in one["tied"]
    assert 0.8 < other["best"]["measured_us"] / one["best"]["measured_us"] < 1.25


@needs_sshd
def test_by_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    loop = Loopback(tmp_path)
    loop.start()
    try:
        for name, value in loop.environ.items():
            monkeypatch.setenv(name, value)
        agree(tuned(capsys), tuned(capsys, "--on", "ssh:loop"))
        assert loop.logins() >= 1
    finally:
        loop.stop()


@needs_slurm
def test_in_an_allocation(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    agree(tuned(capsys), tuned(capsys, "--on", "slurm"))
    assert cluster.submitted() == 1
