"""Collectives, settings of NCCL and a program on two GPUs of one host. Skipped on a machine with fewer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tilewright.hardware.gpu import count
from tilewright.program.command import ProgramCommand
from tilewright.program.distributed.collectives import COLLECTIVES, measured_by
from tilewright.program.distributed.ranks import PROTECTED, Ranks, started_ranks
from tilewright.program.distributed.settings import NcclSetting, race_settings
from tilewright.program.distributed.training import measure_overlap, race_buckets, race_prefetch
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(count() < 2, reason=f"needs two GPUs of one host, and here are {count()}")
]  # fmt: skip
EXAMPLE = Path(__file__).parents[2] / "examples" / "data_parallel"
SECONDS = 120.0


@pytest.fixture(scope="module")
def job() -> Iterator[Ranks]:
    with started_ranks("nccl") as job:
        job.begin(SECONDS)
        yield job


def test_every_collective_gives_the_right_result(job: Ranks) -> None:
    found = measured_by(job, (1 << 10, 1 << 20, 1 << 26), COLLECTIVES, time.monotonic() + SECONDS)
    assert len(found.times) == 15 and not found.missing
    assert all(each.right for each in found.times)
    for name in COLLECTIVES:
        small, _, large = found.of(name)
        assert large.bus_gb_s > 10 * small.bus_gb_s


def test_ranks_inherit_multicast_as_it_is(job: Ranks) -> None:
    given = {name: value for name, value in os.environ.items() if PROTECTED.search(name)}
    assert {name: value for name, value in job.facts.environment.items() if PROTECTED.search(name)} == {
        name: value for name, value in given.items() if name in job.facts.environment
    }


def test_training_steps_overlap_and_are_raced(job: Ranks) -> None:
    overlap = measure_overlap(job, rounds=8)
    assert overlap.bytes == 8 * 4096 * 4096 * 2 and overlap.step_us > overlap.compute_us * 0.9
    assert len(race_buckets(job, rounds=8)) == 4 and len(race_prefetch(job, rounds=8)) == 1


def test_settings_reach_nccl_and_sums_of_two_keep_their_bits() -> None:
    settings = (NcclSetting("Tree", "Simple"), NcclSetting("Ring", "LL"))
    found = race_settings("nccl", [("all_reduce", 64 << 20)], settings=settings, seconds=SECONDS)
    assert not found.failed and all(each.right and each.same_bits for each in found.raced)
    assert next(each for each in found.raced if each.setting == settings[1]).ratio.low > 1.0, "LL is for small messages"


def test_a_program_is_traced_and_its_messages_are_raced() -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ProgramCommand.of([*launch, str(EXAMPLE / "train.py"), "--width", "1024", "--steps", "100"])
    asked = Delegation("distributed", "overlap the all-reduce", str(command), ("latency",),
                       file=str(EXAMPLE / "train.py"), seconds=SECONDS)  # fmt: skip
    answer = specialist_of("distributed").answer(asked)
    named = {each.metric for each in answer.measures}
    assert {"overlap efficiency, rank 0", "overlap efficiency, rank 1"} <= named
    assert any(name.startswith("bus bandwidth of all_reduce") for name in named)
    assert "GB/s of bus bandwidth" in answer.summary
