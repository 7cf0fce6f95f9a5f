"""Communication in traces of ranks: sizes, exposure, the rank that arrives last, and small messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.profile.made_traces import MadeTrace, data_parallel

from tilewright.profile.collectives import Communication, ProgramMessage, communication
from tilewright.profile.profile import profile

GATHER, REDUCE = "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def reduced(trace: MadeTrace, at: float, us: float, elements: int, name: str = REDUCE, **more: object) -> None:
    """Adds a collective of bfloat16 numbers, as torch 2.2 and newer write it."""
    facts = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
             "dtype": "BFloat16", "Group size": 2, **more}  # fmt: skip
    place = {"device": trace.device, "context": 1, "stream": 20, "correlation": 0}
    trace.add("kernel", name, at, us, trace.device, 20, **place, **facts)


def ranks(folder: Path, late_us: float = 0.0, small: int = 0, gathers: int = 1) -> Communication:
    """Two ranks with 4 large reductions of 100 µs, each half behind a kernel, and ``small`` small ones. Rank 1 arrives
    ``late_us`` later, so that rank 0 waits for it."""
    for rank in (0, 1):
        trace = MadeTrace(rank, device=rank)
        for step in range(4):
            at, wait = 1000.0 * step, late_us * (1 - rank)
            trace.launched("gemm", at, 600.0 + late_us * rank, at - 5)
            reduced(trace, at + 550 + late_us * rank, 100.0 + wait, 1 << 20)
            for number in range(small):
                reduced(trace, at + 800 + 20 * number, 10.0, 512)
        for number in range(gathers):
            facts = {"Collective name": "_allgather_base", "In msg nelems": 50, "Out msg nelems": 100}
            reduced(trace, 4000.0 + 20 * number, 10.0, 0, GATHER, **facts)
        trace.launched("gemm", 4500.0, 500.0, 4490.0)
        trace.write(folder / f"rank{rank}.json.gz")
    return communication(sorted(folder.glob("rank*.json.gz")))


def kinds(found: Communication) -> list[str]:
    return [each.kind for each in found.findings]


def test_sizes_and_exposure(tmp_path: Path) -> None:
    found = ranks(tmp_path)
    assert not found.findings and not found.note
    assert found.messages == (ProgramMessage("all_reduce", 2 << 20, 4), ProgramMessage("all_gather", 200, 1))
    for rank in found.ranks:
        assert (rank.time_us, rank.communication_us, rank.exposed_us, rank.waited_us) == (5000.0, 410.0, 210.0, 0.0)
        assert rank.hidden == pytest.approx(1 - 210 / 410)
    rows = {(row.rank, row.operation): row for row in found.rows}
    assert rows[1, "all_reduce"].bytes == 8 << 20 and rows[1, "all_reduce"].exposed_us == 200.0
    assert rows[0, "all_gather"].lines[0].startswith("rank0.json.gz:")


def test_the_rank_for_which_the_others_wait(tmp_path: Path) -> None:
    found = ranks(tmp_path, late_us=90.0)
    straggler = next(each for each in found.findings if each.kind == "straggler")
    assert straggler.text.startswith("rank 0 waits for other ranks in ")
    assert "rank 1 arrives last at 5 of 5 collectives" in straggler.text
    assert [rank.waited_us for rank in found.ranks] == [4 * 90.0, 0.0]


@pytest.mark.parametrize(("small", "found"), [(0, False), (1, False), (8, True)])
def test_many_small_messages(tmp_path: Path, small: int, found: bool) -> None:
    few = ranks(tmp_path, small=small, gathers=0)
    assert ("small-messages" in kinds(few)) is found
    if found:
        text = next(each.text for each in few.findings if each.kind == "small-messages")
        assert text.startswith("32 of 36 collectives of rank 0 have less than 256 KiB, and take 44.4 %")


def test_the_same_shares_as_the_split_of_a_profile(tmp_path: Path) -> None:
    paths = [data_parallel(seed, rank).write(tmp_path / f"r{rank}.json") for seed, rank in ((3, 0), (3, 1))]
    found = communication(paths)
    for rank, gpu in zip(found.ranks, profile(*paths).gpus, strict=True):
        assert rank.exposed_us / rank.time_us == pytest.approx(gpu.value("exposed communication"))
        assert rank.communication_us / rank.time_us == pytest.approx(gpu.value("communication"))
    assert kinds(found).count("exposed-communication") == sum(
        each.exposed_us > 0.2 * each.time_us for each in found.ranks
    )
    assert all(row.operation == "all_reduce" and row.bytes is None for row in found.rows) and not found.messages


def test_ranks_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    one = data_parallel(rank=0).write(tmp_path / "a.json")
    other = data_parallel(rank=1, steps=2).write(tmp_path / "b.json")
    again = data_parallel(rank=0).write(tmp_path / "c.json")
    for paths, why in (
        ([one], "one rank alone does not show which rank the others wait for"),
        ([one, other], "the ranks have different collectives"),
        ([one, again], "two traces are of the same rank"),
    ):
        found = communication(paths)
        assert found.note.startswith(why) and all(each.waited_us is None for each in found.ranks)
    assert communication([one, other], steps=(0, 2)).note == ""
