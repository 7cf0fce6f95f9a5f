"""Jobs of coding agents that measure: a tuned kernel, and a program that is profiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.gpu.test_profile_gpu import TRAINS
from tests.mcp.test_jobs import NORM, finished

from tilewright.mcp.jobs import Jobs
from tilewright.mcp.replies import ProfileReply, TuneReply

pytestmark = pytest.mark.gpu


def test_a_tuned_kernel_is_measured_and_a_program_is_profiled(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAINS)
    jobs = Jobs()
    tuning = jobs.start("tune", {"task": NORM, "workloads": ["odd"], "top": 3})
    profiling = jobs.start("profile", {"command": [sys.executable, str(tmp_path / "program.py")]})
    tuned, profiled = finished(jobs, tuning), finished(jobs, profiling)
    assert isinstance(tuned.result, TuneReply), tuned
    assert tuned.result.measured and tuned.result.workloads[0].best and tuned.result.workloads[0].best.measured_us
    assert isinstance(profiled.result, ProfileReply), profiled
    assert len(profiled.result.steps_us) > 5 and profiled.result.gpus[0].kernels
