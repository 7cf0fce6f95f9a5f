"""A worker in an allocation that was broken into: what it says is an outcome of its step, and the next step runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.remote.kit import wait_for, written_ops
from tests.slurm.kit import Cluster, needs_slurm
from tests.slurm.liar import ENDLESS, FLOOD, GONE, LIES

from tilewright.errors import MachineError
from tilewright.executors.slurm import Slurm
from tilewright.remote import job_spec
from tilewright.worker.messages import InputsReady, PrepareInputs

pytestmark = [needs_slurm, pytest.mark.usefixtures("environ"), pytest.mark.timeout(240)]
WORKER = str(Path(__file__).with_name("liar.py"))
TRUE = ("progress without end", FLOOD)
"""An answer comes."""


def test_a_worker_that_lies_ends_its_step_only(tmp_path: Path, cluster: Cluster) -> None:
    task = written_ops(tmp_path, "import tilewright")
    with Slurm(job_spec.read(), (sys.executable, WORKER)) as executor:
        executor.open(task)
        with pytest.raises(MachineError, match="does not answer as Tilewright does .*a candidate that is none"):
            executor.run(PrepareInputs(GONE, 0))
        for lie in (*LIES, ENDLESS, FLOOD):
            heard: list[object] = []
            outcome = executor.run(PrepareInputs(lie, 0), silence=30.0, on_progress=heard.append)
            assert outcome.status == ("PASSED" if lie in TRUE else "FAILED"), (lie, outcome)
            assert "\n" not in outcome.reason and bool(outcome.reason) == (lie not in TRUE), (lie, outcome)
            assert len(outcome.reason) < 5000, lie
            assert len(heard) < 1000, "progress is passed on seldom"
            following = executor.run(PrepareInputs("true", 0))
            assert isinstance(following.answer, InputsReady), (lie, following)
        [agent] = cluster.agents()
        peak = int(Path(f"/proc/{agent}/status").read_text().partition("VmHWM:")[2].split()[0])
        assert peak < 700 << 10, "the resident process keeps little of it"
    wait_for(lambda: not cluster.left())
