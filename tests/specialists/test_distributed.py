"""The distributed specialist (issue 17, point 5): traces, proposals, and what it says without two GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.profile.made_traces import data_parallel, eager_training

from tilewright.errors import MachineError, RequestError
from tilewright.profile.collectives import communication
from tilewright.program.distributed.collectives import MeasuredCollectives
from tilewright.program.distributed.measuring import HostCommunication
from tilewright.program.distributed.ranks import RankFacts
from tilewright.program.distributed.settings import NcclSetting, RecommendedSetting, launch_lines
from tilewright.specialists import distributed, specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.proposal import NoProposal, ProgramProposal

SPECIALIST = specialist_of("distributed")
EXAMPLE = Path(__file__).parents[2] / "examples" / "data_parallel" / "train.py"


def asked(file: Path | str, task: str = "overlap the all-reduce", constraints: tuple[str, ...] = ()) -> Delegation:
    return Delegation("distributed", task, "one step", ("latency",), file=str(file), constraints=constraints)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    for rank in (0, 1):
        data_parallel(rank=rank).write(tmp_path / f"rank{rank}.json.gz")
    return tmp_path


def test_traces_of_ranks_are_read_without_a_gpu(traces: Path) -> None:
    answer = SPECIALIST.answer(asked(traces))
    values = {each.metric: each.before for each in answer.measures}
    found = communication(sorted(traces.iterdir()))
    for rank in found.ranks:
        assert values[f"overlap efficiency, rank {rank.rank}"] == pytest.approx(100 * (rank.hidden or 0.0))
        assert values[f"exposed all_reduce (16), rank {rank.rank}"] == pytest.approx(rank.exposed_us)
    assert set(answer.findings) == {each.id for each in found.findings} and answer.outcome == "analysed"
    assert all("trace " in each.evidence for each in answer.measures)
    one = SPECIALIST.answer(asked(traces / "rank1.json.gz"))
    assert "give the traces of all ranks" in one.summary


def test_what_is_no_trace_of_ranks_is_one_line(tmp_path: Path) -> None:
    eager_training().write(tmp_path / "alone.json")
    with pytest.raises(RequestError, match="no communication between GPUs; record a step of a program on several GPUs"):
        SPECIALIST.answer(asked(tmp_path / "alone.json"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"no traces \(\*\.json, \*\.json\.gz\) in the folder"):
        SPECIALIST.answer(asked(tmp_path / "empty"))


@pytest.mark.parametrize(("gpus", "have"), [(0, "there is none"), (1, "there is 1")])
def test_without_two_gpus_one_line_says_what_it_still_answers(
    gpus: int, have: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "count", lambda: gpus)
    with pytest.raises(MachineError) as raised:
        SPECIALIST.answer(asked(EXAMPLE))
    assert str(raised.value) == (
        f"the distributed specialist measures on 2 GPUs of one host, and here {have}; it still reads traces of ranks "
        "(name one, or their folder), and proposes changes of DDP and FSDP from the source"
    )


def test_it_proposes_what_a_task_names_and_marks_other_buckets_as_lossy() -> None:
    proposed = SPECIALIST.propose(asked(EXAMPLE))
    assert isinstance(proposed, tuple)
    assert [(each.name, each.risk) for each in proposed] == [
        ("ddp_gradient_as_bucket_view", "lossless"), ("ddp_bucket_100_mb", "lossy"), ("ddp_bucket_50_mb", "lossy"),
        ("ddp_bucket_10_mb", "lossy"),
    ]  # fmt: skip
    named = SPECIALIST.propose(asked(EXAMPLE, "ddp_bucket_50_mb: another bucket size"))
    assert isinstance(named, tuple) and [each.name for each in named] == ["ddp_bucket_50_mb"]
    assert isinstance(named[0], ProgramProposal) and "bucket_cap_mb=50" in next(iter(named[0].texts.values()))
    refused = SPECIALIST.propose(asked(EXAMPLE, "prefetch the parameters of FSDP"))
    assert isinstance(refused, NoProposal) and "FullyShardedDataParallel" in refused.reason
    assert len(SPECIALIST.seen(EXAMPLE)) == 4 and SPECIALIST.seen(EXAMPLE)[1].endswith("ddp_bucket_100_mb (lossy)")


@pytest.mark.parametrize("lossy", [False, True])
def test_a_lossy_setting_is_for_the_launch_only_if_allowed(lossy: bool) -> None:
    facts = RankFacts("nccl", 2, ("H100", "H100"), "2.11.0", "2.28.9", {"NCCL_NVLS_ENABLE": "0"})
    found = (
        RecommendedSetting("all_reduce", NcclSetting("Tree", "LL"), 20.0, 15.0, True, "64 KiB: 0.75"),
        RecommendedSetting("all_gather", NcclSetting("Ring", "LL"), 20.0, 15.0, False, "1 MiB: 0.75"),
    )
    measured = MeasuredCollectives(facts, facts.protected, (), (), "0a1b2c3d")
    host = HostCommunication(measured, None, None, found, launch_lines(facts, found), ())
    answer = distributed._of_host(host, None, lossy)
    wanted = "NCCL_ALGO=allreduce:Tree;allgather:Ring" if lossy else "NCCL_ALGO=allgather:Ring NCCL_PROTO=allgather:LL"
    assert f"for the launch: {wanted}" in answer.summary
    assert ("--allow-lossy" in answer.findings["nccl-all_reduce"]) is not lossy
    assert answer.findings["NCCL_NVLS_ENABLE"] == "the environment sets NCCL_NVLS_ENABLE=0; it is left as it is"
