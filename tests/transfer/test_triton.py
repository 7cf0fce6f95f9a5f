"""Triton → cuTile and back (A-24): what carries over survives the round trip, and nothing is lost silently."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import RequestError, UnknownChoice
from tilewright.space import knobs
from tilewright.transfer.triton import NO_CUTILE, NO_TRITON, transfer


class Config:
    """As triton 3.9 has it: the attributes that a ``triton.Config`` shows."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, num_ctas: int = 1, **more: Any):
        self.kwargs = kwargs
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas
        self.maxnreg = more.get("maxnreg")
        self.pre_hook = more.get("pre_hook")
        self.ir_override = None


def dicts(configs: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(one) for one in configs]


SIZES = st.sampled_from([16, 32, 64, 128, 256])
TILES = ["BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_K", "BLOCK", "BM", "XBLOCK"]
META = st.fixed_dictionaries(
    {"BLOCK_SIZE_M": SIZES},
    optional={name: SIZES | st.integers(1, 300) for name in TILES[1:]}
    | {"GROUP_SIZE_M": st.integers(1, 16), "EVEN_K": st.booleans(), "SCALE": st.floats(allow_nan=True)}
    | {"MODE": st.text(max_size=3), "num_stages": st.integers(1, 4), "waves_per_eu": st.integers(0, 4)},
)
CONFIGS = st.lists(
    st.builds(
        Config, META, num_warps=st.sampled_from([4, 8]), num_stages=st.integers(1, 4),
        num_ctas=st.sampled_from([1, 2, 3, 4]), maxnreg=st.none() | st.just(128),
        pre_hook=st.none() | st.just(print),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@given(CONFIGS, st.none() | st.sampled_from(["sm_80", "sm_90", "sm_120"]))
def test_every_field_is_in_the_output_or_dropped_with_a_reason(configs: list[Config], arch: str | None) -> None:
    done = transfer(configs, arch=arch)
    became = {place: one for one, places in zip(done.configurations, done.origins, strict=True) for place in places}
    for place, config in enumerate(configs):
        lost = [one for one in done.dropped if one.configuration == place]
        assert all(one.reason for one in lost)
        if place not in became:
            assert [one.field for one in lost] == [""]
            continue
        fields = [*config.kwargs, "num_warps", "num_stages", "num_ctas"]
        fields += [name for name in ("maxnreg", "pre_hook") if getattr(config, name) is not None]
        kept = {old: done.renamed.get(old, old) for old in fields if done.renamed.get(old, old) in became[place]}
        assert sorted([*kept, *(one.field for one in lost)]) == sorted(fields)
        for old, new in kept.items():
            assert became[place][new] == (config.num_ctas if old == "num_ctas" else config.kwargs[old])


@given(CONFIGS)
def test_the_round_trip_is_the_identity_on_what_carries_over(configs: list[Config]) -> None:
    there = transfer(configs)
    back = transfer(there.configurations, to="triton", names=there.back)
    assert not back.dropped
    assert back.origins == tuple((i,) for i in range(len(there.configurations)))
    for one, places in zip(back.configurations, there.origins, strict=True):
        for place in places:
            source = {**configs[place].kwargs, "num_ctas": configs[place].num_ctas}
            assert dict(one) == {name: source[name] for name in one}
    again = transfer(
        back.configurations, names={name: there.renamed.get(name, name) for one in back.configurations for name in one}
    )
    assert again.configurations == there.configurations


@given(CONFIGS, st.sampled_from(["sm_80", "sm_90", "sm_100", "sm_120"]))
def test_the_space_allows_all_of_it(configs: list[Config], arch: str) -> None:
    """The same rules as a search: powers of two, clusters only where there are any."""
    done = transfer(configs, arch=arch)
    full = {name for one in done.configurations for name in one}
    if not any(set(one) == full for one in done.configurations):
        with pytest.raises(RequestError):
            done.space()
        return
    space, number = done.space(), int(arch[3:])
    complete = [one for one in done.configurations if set(one) == full]
    assert all(space.allows(one, number, {}) is None for one in complete)
    assert set(complete) <= set(space.configurations(number, {}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BLOCK_SIZE_M", "TILE_SIZE_M"), ("BLOCK_SIZE_K", "TILE_SIZE_K"), ("BLOCK_N", "TILE_N"), ("BLOCK", "TILE"),
        ("BLOCK_SIZE", "TILE_SIZE"), ("BLOCK_DMODEL", "TILE_DMODEL"), ("XBLOCK", "TILE_X"), ("BM", "TILE_M"),
        ("GROUP_SIZE_M", "GROUP_SIZE_M"), ("SPLIT_K", "SPLIT_K"),
    ],
)  # fmt: skip
def test_names(old: str, new: str) -> None:
    done = transfer([{old: 64}])
    assert dicts(done.configurations) == [{new: 64}]
    assert any("under its own name" in note for note in done.notes) == (old == "SPLIT_K")


def test_names_that_collide() -> None:
    done = transfer([{"BLOCK_M": 64, "TILE_M": 32, "BM": 16}])
    assert dicts(done.configurations) == [{"BLOCK_M": 64, "TILE_M": 32, "BM": 16}]
    with pytest.raises(RequestError, match="'A' cannot be called 'B'"):
        transfer([{"A": 1, "B": 2}], names={"A": "B"})
    with pytest.raises(UnknownChoice, match="unknown parameter 'C'; known: A"):
        transfer([{"A": 1}], names={"C": "D"})


def test_what_has_no_equivalent_is_never_guessed() -> None:
    """num_worker_warps is not num_warps: both values are tried beside, in neither direction derived."""
    done = transfer([Config({"BLOCK_M": 64}, num_warps=8, maxnreg=128)])
    assert {one.field for one in done.dropped} == {"num_warps", "num_stages", "maxnreg"}
    assert done.suggested["num_worker_warps"] == knobs.hints()["num_worker_warps"].values
    assert not any("num_worker_warps" in one for one in done.configurations)
    back = transfer([{"TILE_M": 64, "num_worker_warps": 8, "occupancy": 2, "opt_level": 3}], to="triton")
    assert {one.field for one in back.dropped} == set(NO_TRITON)
    assert dicts(back.configurations) == [{"BLOCK_M": 64}]


def test_equal_ones_are_merged_and_said() -> None:
    done = transfer([Config({"BLOCK_M": m}, num_warps=w) for m in (64, 128) for w in (4, 8)])
    assert done.origins == ((0, 1), (2, 3))
    assert "4 configurations became 2: the others are equal to one of them" in done.notes


def test_clusters_and_sizes_that_are_not_allowed() -> None:
    two = [Config({"BLOCK_M": 64}, num_ctas=2), Config({"BLOCK_M": 96})]
    assert [one.reason for one in transfer(two, arch="sm_80").dropped if not one.field] == [
        "num_ctas=2: sm_80 has no clusters and ignores it silently",
        "BLOCK_M: TILE_M=96 is not a power of two of at least 1; cuTile accepts no other tile size",
    ]
    allowed = transfer(two, arch="sm_90")
    assert dicts(allowed.configurations) == [{"TILE_M": 64, "num_ctas": 2}]
    assert any("one element of the grid is one cluster" in note for note in allowed.notes)


def test_occupancy_of_the_tile_ir_backend_is_a_hint() -> None:
    done = transfer([Config({"BLOCK_M": 64, "occupancy": 2})])
    assert done.space().hints["occupancy"] == (2,)
    assert any("Tile IR backend" in note for note in done.notes)


def test_what_else_may_be_given() -> None:
    assert dicts(transfer([SimpleNamespace(TILE_M=64, num_ctas=2)], to="triton").configurations) == [
        {"BLOCK_M": 64, "num_ctas": 2}
    ]
    with pytest.raises(UnknownChoice, match="unknown target 'cuda'; known: cutile, triton"):
        transfer([], to="cuda")
    with pytest.raises(RequestError, match="3 is not a configuration"):
        transfer([3])
    nothing = transfer([Config({})], arch="sm_90")
    assert dicts(nothing.configurations) == [{"num_ctas": 1}]
    with pytest.raises(RequestError, match="no configuration could be transferred: BLOCK_M: TILE_M=3 is not a power"):
        transfer([{"BLOCK_M": 3}]).space()


def test_the_real_triton() -> None:
    triton = pytest.importorskip("triton")
    done = transfer([triton.Config({"BLOCK_M": 64}, num_warps=8, num_ctas=2)])
    assert dicts(done.configurations) == [{"TILE_M": 64, "num_ctas": 2}]
    assert {one.field for one in done.dropped} == {"num_warps", "num_stages"}
    assert set(done.renamed.values()).isdisjoint(NO_CUTILE)
