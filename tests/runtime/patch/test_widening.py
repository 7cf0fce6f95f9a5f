"""`--widen`: neighbours of plain records of numbers, nearest first, none that a caller's own facts may not allow."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.runtime.patch.widening import fields_of, replaced, widened

FMHA = [
    SimpleNamespace(TILE_M=256, TILE_N=128, num_ctas=1, occupancy=1),
    SimpleNamespace(TILE_M=128, TILE_N=128, num_ctas=1, occupancy=2),
    SimpleNamespace(TILE_M=256, TILE_N=128, num_ctas=1, occupancy=2),
    SimpleNamespace(TILE_M=256, TILE_N=128, num_ctas=2, occupancy=2),
]
"""What TileGym's attention gives on Hopper."""


@dataclass(frozen=True)
class Frozen:
    BLOCK_M: int
    stages: int


Pair = namedtuple("Pair", "TILE_K occupancy")


class Plain:
    def __init__(self, tm: int) -> None:
        self.tm = tm


def new(space: list[Any]) -> list[dict[str, Any]]:
    return [dict(fields_of(config) or {}) for config in list(widened(space))[len(space) :]]


def test_the_given_ones_come_first_and_stay_the_same_objects() -> None:
    found = list(widened(FMHA))
    assert all(one is given for one, given in zip(found, FMHA, strict=False))


def test_attention_reaches_the_tiles_of_hopper() -> None:
    """measured.md 5: TILE 64×128 is 1.7 times as fast as what the list holds."""
    found = list(widened(FMHA))[:64]
    assert any(config.TILE_M == 64 and config.TILE_N == 128 for config in found)


def test_no_tile_exceeds_the_largest_given_one() -> None:
    """The caller says EVEN_K where its largest TILE_N divides the length: a larger one would read past it."""
    found = list(widened(FMHA))
    assert max(config.TILE_N for config in found) == 128
    assert max(config.TILE_M for config in found) == 256
    assert min(min(config.TILE_M, config.TILE_N) for config in found) >= 16


def test_nearest_first_each_once_and_always_the_same() -> None:
    found = [tuple(sorted(vars(config).items())) for config in widened(FMHA)]
    assert len(set(found)) == len(found)
    assert found == [tuple(sorted(vars(config).items())) for config in widened(FMHA)]

    def distance(config: Any) -> int:
        """Steps from the nearest given one: a tile's by doubling, a hint's by value."""
        return min(
            sum(
                abs(a.bit_length() - b.bit_length()) if name.startswith("TILE") else int(a != b)
                for name, a, b in ((name, getattr(config, name), value) for name, value in vars(one).items())
            )
            for one in FMHA
        )

    distances = [distance(config) for config in widened(FMHA)]
    assert distances == sorted(distances)
    assert distances[-1] == 2


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        (Frozen(64, 3), {"BLOCK_M": 32}),
        (Pair(64, 1), {"TILE_K": 32}),
        ({"TILE_SIZE_N": 64}, {"TILE_SIZE_N": 32}),
        (SimpleNamespace(bk=64), {"bk": 32}),
        (Plain(64), {"tm": 32}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_record(config: Any, changed: dict[str, int]) -> None:
    neighbours = list(widened([config]))[1:]
    assert type(neighbours[0]) is type(config)
    assert fields_of(neighbours[0]) == {**(fields_of(config) or {}), **changed}
    assert fields_of(config) != fields_of(neighbours[0]), "the given one is not touched"
    assert fields_of(replaced(config, changed)) == fields_of(neighbours[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"GROUP_SIZE_M": 32},
        {"NUM_BLOCKS": 64},
        {"BLOCK_D": 128},
        {"SPLIT_K": 16},
        {"TILE_M": 96},
        {"TILE_M": 16},
        {"TILE_M": True},
        {"latency": 64},
        {"num_worker_warps": 4},
        {"occupancy": None},
    ],
    ids=str,
)
def test_other_fields_stay(fields: dict[str, Any]) -> None:
    assert new([SimpleNamespace(**fields)]) == []


@pytest.mark.parametrize("config", [64, (64, 64), "TILE_M=64", {"TILE_M": [64]}, None], ids=str)
def test_what_is_no_record_of_numbers_is_left_alone(config: Any) -> None:
    assert list(widened([config])) == [config]


def test_hints_take_their_usual_values() -> None:
    assert new([{"occupancy": 2}]) == [{"occupancy": 1}, {"occupancy": 4}]
    assert new([{"num_ctas": 1}]) == [{"num_ctas": 2}]
