"""Blocks that decide otherwise than most blocks of their grid."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.tileir.watch.decisions import Decisions

BLOCKS = 5000


@pytest.mark.parametrize("seed", range(20))
def test_a_block_that_is_treated_apart_is_found(seed: int) -> None:
    """Among decisions that differ in all blocks, as the bounds of a causal mask do."""
    decisions, blocks = Decisions(BLOCKS, seed), np.arange(BLOCKS)
    decisions.add("differs everywhere", blocks, blocks)
    decisions.add("apart", blocks == 1234, blocks)
    decisions.add("apart in one element of a tile", (blocks[:, None] * 8 + np.arange(8)) == 17771, blocks)
    decisions.add("the same in all", np.ones(1, bool), blocks)
    found = decisions.unusual(6, (0, BLOCKS - 1))
    assert {1234, 17771 // 8} <= {*found} and len(found) == 6


@pytest.mark.parametrize("apart", [0.25, -0.75, float("nan")])
def test_fractions_and_negative_numbers_are_told_apart(apart: float) -> None:
    decisions, blocks = Decisions(64, 0), np.arange(64)
    decisions.add("minf", np.where(blocks == 9, apart, 0.5).astype(np.float32), blocks)
    assert decisions.unusual(6, (0, 63)) == [9]


def test_what_all_blocks_decide_alike_makes_no_block_unusual() -> None:
    decisions, blocks = Decisions(64, 0), np.arange(64)
    decisions.add("the same", np.zeros((64, 3), bool), blocks)
    decisions.add("two ways", blocks < 32, blocks)
    assert decisions.unusual(6, (0, 63)) == []


def test_the_iterations_of_a_loop_decide_as_a_set() -> None:
    """Blocks with loops of different lengths decide alike if each comparison comes out in the same ways."""
    decisions = Decisions(64, 0)
    for iteration in range(64):
        blocks = np.arange(iteration, 64)
        decisions.add("on the diagonal", blocks == iteration, blocks)
    assert len(decisions.unusual(6, (5,))) <= 1, "block 0 alone never leaves the diagonal"


def test_two_operations_tell_one_block_together() -> None:
    decisions, blocks = Decisions(BLOCKS, 0), np.arange(BLOCKS)
    for first in (1500, 1501):
        decisions.add(f"from {first} on", blocks >= first, blocks, telling=False)
    assert decisions.unusual(6, (0, BLOCKS - 1), 6) == [1500]


def test_rare_decisions_do_not_hide_one_another() -> None:
    decisions, blocks = Decisions(BLOCKS, 0), np.arange(BLOCKS)
    for apart in range(20):
        decisions.add(f"apart {apart}", blocks == 7 * apart + 100, blocks)
    assert len(decisions.unusual(6, (0, BLOCKS - 1))) == 6
    found = decisions.unusual(6, (0, BLOCKS - 1), 32)
    assert {*found} <= {7 * apart + 100 for apart in range(20)}
    assert len(found) > 16, "in one of 64 cases, both results of an operation share a bit"


def test_what_differs_in_every_block_is_no_reason_unless_it_tells() -> None:
    decisions, blocks = Decisions(BLOCKS, 0), np.arange(BLOCKS)
    decisions.add("a sum", blocks, blocks, telling=False)
    assert decisions.unusual(6, (0, BLOCKS - 1), 32) == []
