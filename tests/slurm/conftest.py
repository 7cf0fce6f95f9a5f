"""One cluster for all tests of a process, with a ``job_spec.json`` for it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests.remote.kit import wait_for
from tests.slurm.kit import Cluster, spec


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
    except (AssertionError, subprocess.TimeoutExpired):
        made.stop()
        pytest.skip(f"SLURM does not start on this machine: {made.complaint()}")
    yield made
    made.stop()


@pytest.fixture
def environ(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names the cluster and its ``job_spec.json``. At the end, waits until nothing of the runs is left."""
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TILEWRIGHT_JOB_SPEC", str(spec(cluster.folder)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cluster.folder / "here"))
    yield
    wait_for(lambda: not cluster.left(), pause=0.2)
