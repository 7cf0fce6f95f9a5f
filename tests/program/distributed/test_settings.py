"""Which setting of NCCL is recommended for a program's messages, and how it is written; the overlap of made times."""

from __future__ import annotations

import pytest

from tilewright.profile.collectives import ProgramMessage
from tilewright.program.distributed.ranks import RankFacts
from tilewright.program.distributed.settings import (
    SETTINGS,
    NcclSetting,
    RacedSetting,
    RacedSettings,
    launch_lines,
    main_messages,
    recommended,
)
from tilewright.program.distributed.training import overlap_of
from tilewright.race.interval import Interval

TREE, RING = NcclSetting("Tree", "LL"), NcclSetting("Ring", "Simple")
SMALL, LARGE = ProgramMessage("all_reduce", 1 << 16, 10), ProgramMessage("all_reduce", 1 << 24, 1)
GATHER = ProgramMessage("all_gather", 1 << 20, 4)


def row(
    message: ProgramMessage, setting: NcclSetting, low: float, high: float, *, right: bool = True
) -> RacedSetting:  # fmt: skip
    middle = (low + high) / 2
    ratio = Interval(low, middle, high, 0.99, 16)
    return RacedSetting(message.collective, message.bytes, setting, 100.0, 100.0 * middle, ratio, right, True, ())


def race(*rows: RacedSetting, nccl: str = "2.28.9") -> RacedSettings:
    facts = RankFacts("nccl", 2, ("H100", "H100"), "2.11.0", nccl, {})
    return RacedSettings(facts, (), rows, {}, 16, "0a1b2c3d")


def test_a_setting_that_is_faster_somewhere_and_slower_nowhere() -> None:
    found = race(row(SMALL, TREE, 0.7, 0.8), row(LARGE, TREE, 0.99, 1.01), row(SMALL, RING, 0.6, 0.7),
                 row(LARGE, RING, 1.2, 1.3))  # fmt: skip
    (best,) = recommended(found, (SMALL, LARGE))
    assert best.setting == TREE and best.lossy
    assert "64 KiB: 0.700 to 0.800 of the time of NCCL's choice" in best.why and "other bits" in best.why
    assert (best.default_us, best.us) == (100.0, pytest.approx((10 * 75 + 100) / 11))
    assert launch_lines(found.facts, (best,)) == ("NCCL_ALGO=allreduce:Tree", "NCCL_PROTO=allreduce:LL")
    assert recommended(found, (SMALL,))[0].setting == RING, "its slow size does not occur"


@pytest.mark.parametrize(
    "rows",
    [
        (row(SMALL, TREE, 0.9, 1.1),),
        (row(SMALL, TREE, 0.985, 0.995),),
        (row(SMALL, TREE, 0.5, 0.6, right=False),),
        (row(SMALL, NcclSetting("Ring", "LL128"), 0.5, 0.6),),
        (row(LARGE, TREE, 0.5, 0.6),),
    ],
    ids=["within the noise", "too little", "wrong results", "may corrupt data", "another size"],
)
def test_what_is_not_recommended(rows: tuple[RacedSetting, ...]) -> None:
    assert recommended(race(*rows), (SMALL,)) == ()


def test_several_collectives_are_set_apart_from_nccl_2_24_on() -> None:
    rows = row(SMALL, TREE, 0.7, 0.8), row(GATHER, RING, 0.7, 0.8)
    found = race(*rows)
    both = recommended(found, (SMALL, GATHER))
    assert [each.lossy for each in both] == [True, False]
    lines = ("NCCL_ALGO=allreduce:Tree;allgather:Ring", "NCCL_PROTO=allreduce:LL;allgather:Simple")
    assert launch_lines(found.facts, both) == lines
    old = race(*rows, nccl="2.21.5")
    assert recommended(old, (SMALL, ProgramMessage("all_to_all", 8, 1))) == (), "its algorithm may not exist there"
    assert recommended(old, (SMALL, GATHER)) == ()
    assert launch_lines(old.facts, recommended(old, (SMALL,))) == ("NCCL_ALGO=Tree", "NCCL_PROTO=LL")


def test_without_messages_of_a_program_nothing_is_recommended() -> None:
    assert recommended(race(row(SMALL, TREE, 0.5, 0.6)), ()) == ()


def test_settings_name_no_multicast() -> None:
    assert len(SETTINGS) == 6
    assert {name for each in SETTINGS for name in each.variables} == {"NCCL_ALGO", "NCCL_PROTO"}
    assert not any("NVLS" in value.upper() for each in SETTINGS for value in each.variables.values())


def test_messages_that_move_most_bytes_are_raced() -> None:
    many = [ProgramMessage("all_reduce", 1 << n, 1) for n in range(10, 20)]
    chosen = main_messages((*many, ProgramMessage("send or receive", 1 << 30, 9), GATHER))
    assert len(chosen) == 6 and chosen[0] == GATHER and chosen[1].bytes == 1 << 19


@pytest.mark.parametrize(("step", "share"), [(100.0, 1.0), (125.0, 0.5), (150.0, 0.0), (175.0, -0.5)])
def test_the_hidden_share(step: float, share: float) -> None:
    found = overlap_of([step] * 8, [100.0] * 8, [50.0] * 8, 25.0, 1, 1)
    assert found.hidden.low == found.hidden.centre == found.hidden.high == pytest.approx(share)
