"""Jobs of several processes that communicate for real, by gloo on this CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from tilewright.errors import MachineError, RequestError, ToolFailed
from tilewright.hardware.gpu import count
from tilewright.program.distributed.collectives import BUS, COLLECTIVES, measured_by
from tilewright.program.distributed.ranks import SETTABLE, Ranks, started_ranks
from tilewright.program.distributed.training import measure_overlap, race_buckets

SET = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_DEBUG": "WARN"}
UNSET = ("NVSHMEM_DISABLE_NVLS", "NCCL_NVLS_CHUNKSIZE")
SECONDS = 120.0


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[int, Ranks]]:
    """Jobs of two and of three ranks, which start together. That of two has settings of NCCL, which gloo ignores."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SET.items():
            patch.setenv(name, value)
        for name in (*UNSET, *SETTABLE):
            patch.delenv(name, raising=False)
        settings = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
        with started_ranks("gloo", 2, settings) as two, started_ranks("gloo", 3) as three:
            for job in (two, three):
                job.begin(SECONDS)
            yield {2: two, 3: three}


def test_ranks_inherit_what_the_environment_says_of_multicast(jobs: dict[int, Ranks]) -> None:
    kept, plain = (jobs[ranks].facts for ranks in (2, 3))
    assert kept.protected == plain.protected == ("NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1")
    assert dict(kept.environment) == {**plain.environment, "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    assert SET.items() <= dict(plain.environment).items() and not set(UNSET) & set(plain.environment)


@pytest.mark.parametrize("name", ["NCCL_NVLS_ENABLE", "NCCL_MULTICAST_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST"])
def test_variables_of_multicast_cannot_be_set(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} is not set for ranks; only NCCL_ALGO and NCCL_PROTO are"):
        started_ranks("gloo", 2, {name: "1"}).__enter__()


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_gives_the_right_result(jobs: dict[int, Ranks], ranks: int) -> None:
    found = measured_by(jobs[ranks], (3 << 18, 3 << 19), COLLECTIVES, time.monotonic() + SECONDS)
    assert not found.missing
    assert [(each.collective, each.bytes) for each in found.times] == [
        (name, size) for name in COLLECTIVES for size in (3 << 18, 3 << 19)
    ]
    for each in found.times:
        assert each.right and len(each.samples_us) == 15
        assert each.low_us <= each.median_us <= each.high_us
        assert each.bus_gb_s == pytest.approx(each.algorithm_gb_s * BUS[each.collective](ranks))


def test_another_bucket_size_changes_bits_from_three_ranks_on(jobs: dict[int, Ranks]) -> None:
    """A sum of two terms has one order; a ring sums each part of a message in an order of its own."""
    digests = {
        ranks: [job.ask("sums", SECONDS, buckets=buckets, seed=1)[0]["digest"] for buckets in ([4000], [1000, 3000])]
        for ranks, job in jobs.items()
    }
    assert digests[2][0] == digests[2][1]
    assert digests[3][0] != digests[3][1]


def test_a_training_step_is_measured_in_its_parts(jobs: dict[int, Ranks]) -> None:
    found = measure_overlap(jobs[2], rounds=6, seconds=SECONDS)
    assert (found.bytes, found.messages, found.hidden.n) == (4 * 128 * 128 * 4, 1, 6)
    raced = race_buckets(jobs[2], (0.0, 1.0), rounds=6, seconds=SECONDS)
    assert [each.name for each in raced] == ["buckets of 1 MiB", "gradient_as_bucket_view"]
    assert all(each.against == "torch's default" and len(each.samples_us) == 6 for each in raced)


def test_an_order_that_fails_is_a_reason_and_the_job_goes_on(jobs: dict[int, Ranks]) -> None:
    for answer in jobs[2].ask("overlap", SECONDS, width=-1, layers=1, batch=1, bucket_mb=1.0, rounds=1):
        assert "\n" not in answer["failed"] and answer["failed"].partition(":")[0] == "RuntimeError"
    assert "digest" in jobs[2].ask("sums", SECONDS, buckets=[8], seed=1)[0]


def test_a_rank_that_is_late_or_dies_ends_the_job_in_one_line() -> None:
    with started_ranks("gloo", 2) as job:
        with pytest.raises(ToolFailed, match="rank 0 did not end 'start' within 0 s"):
            job.begin(0.0)
        pids = [each.pid for each in job._processes]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rank_that_dies_ends_the_order_in_one_line(jobs: dict[int, Ranks]) -> None:
    """The last test of the job of three."""
    jobs[3]._processes[2].kill()
    with pytest.raises(ToolFailed, match="rank 2 was killed by signal 9 during 'sums'"):
        jobs[3].ask("sums", SECONDS, buckets=[8], seed=1)


@pytest.mark.long
def test_without_two_gpus_one_line_says_what_is_possible() -> None:
    if count() >= 2:
        pytest.skip("there are two GPUs")
    with pytest.raises(MachineError, match=r"needs 2 GPUs of one host, and here there .*; traces of ranks are read"):
        started_ranks("nccl").__enter__()
