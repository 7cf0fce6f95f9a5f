"""Which launches are looked at, and what is made of it: sums are exact, shares are estimates within their error."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime.capture.kinds import ALWAYS, BLOCK, EXACT, Cell, LaunchCounter, estimated, shared_out


def come(counter: LaunchCounter) -> int:
    """One launch, as the stand-in makes it."""
    for _ in counter.skip:
        return 0
    return counter.count()


def counted(launches: Sequence[int], kinds: int, seed: int, exact: int = EXACT) -> tuple[list[int], int]:
    """How many launches of each kind are estimated, and how many were looked at."""
    counter, cells = LaunchCounter(exact, Random(seed)), [Cell() for _ in range(kinds)]
    for kind in launches:
        if size := come(counter):
            cells[kind].add(size)
    assert counter.total == len(launches)
    return list(estimated(counter.total, cells).values()), sum(cell.seen for cell in cells)


def test_the_first_launches_are_all_looked_at() -> None:
    counter = LaunchCounter(EXACT, Random(1))
    assert [come(counter) for _ in range(EXACT)] == [1] * EXACT
    later = [come(counter) for _ in range(20_000)]
    assert 20_000 / BLOCK < sum(map(bool, later)) < 20_000 / BLOCK + 250
    assert set(later[-5 * BLOCK :]) == {0, BLOCK}


@pytest.mark.parametrize("number", [1, 999, 1000, 1001, 1010, 5000])
def test_the_number_of_launches_is_known_at_any_time(number: int) -> None:
    counter = LaunchCounter(EXACT, Random(number))
    for _ in range(number):
        come(counter)
    assert counter.total == number


def test_each_block_has_one_look_at_any_of_its_places() -> None:
    """Seeds together: no place is favoured."""
    looked = [0] * BLOCK
    start = 64 * BLOCK * 2
    for seed in range(600):
        counter = LaunchCounter(0, Random(seed))
        counter._block = start  # a block of full size begins here
        counter._before, counter._length = start - 1, 0
        assert come(counter) == 1
        places = [place for place in range(BLOCK) if come(counter)]
        assert len(places) == 1
        looked[places[0]] += 1
    halves = sum(looked[: BLOCK // 2]), sum(looked[::2])
    assert all(240 < half < 360 for half in halves), "300 ± 5 standard errors"


def test_what_is_late_or_comes_by_another_way_takes_its_turn_too() -> None:
    """A launch whose kernel object is not known never looks into `skip` itself."""
    counter, looks = LaunchCounter(10, Random(1)), 0
    for _ in range(20_000):
        looks += bool(counter.count())
    assert counter.total == 20_000
    assert looks < 600


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("period", [2, 64, 128])
def test_kinds_that_take_turns_are_counted_about_right(period: int, seed: int) -> None:
    """Half of the launches are of the first kind. 99,000 with at least 700 looks: 5 standard errors are 10 %."""
    launches = [0 if place % period < period // 2 else 1 for place in range(100_000)]
    (one, other), looks = counted(launches, 2, seed)
    assert one + other == 100_000
    assert 700 < looks - EXACT < 1000
    assert abs(one - 50_000) < 10_000


@pytest.mark.parametrize("seed", range(5))
def test_one_layer_of_64_is_neither_missed_nor_everything(seed: int) -> None:
    """What a fixed stride would get wrong: 64 launches make a step, and one of them is special."""
    launches = [0 if place % 64 else 1 for place in range(300_000)]
    (_, special), _ = counted(launches, 2, seed)
    assert 2500 < special < 7500, "4688, of some 37 looks"


def test_the_mean_of_many_estimates_is_the_truth() -> None:
    """Without bias, also where the kinds change with time: 3,000 of one, then 5,000 of another in between a third."""
    launches = [0] * 3000 + [1, 1, 1, 1, 2] * 1250
    found = [counted(launches, 3, seed)[0] for seed in range(400)]
    means = [sum(column) / len(found) for column in zip(*found, strict=True)]
    assert all(sum(one) == len(launches) for one in found)
    assert means == pytest.approx([3000, 5000, 1250], rel=0.02)


def test_phases_of_a_program_have_their_share() -> None:
    """One look in each block: the border between two phases is known to a block."""
    (one, other), _ = counted([0] * 30_000 + [1] * 70_000, 2, 3)
    assert one + other == 100_000
    assert abs(one - 30_000) < 4 * BLOCK


def test_always_is_exact() -> None:
    launches = [place % 3 for place in range(5000)]
    assert counted(launches, 3, 1, exact=ALWAYS) == ([1667, 1667, 1666], 5000)


def test_what_came_after_the_last_look_is_shared_out() -> None:
    cells = [Cell(), Cell()]
    cells[0].certain, cells[1].certain = 750, 250
    assert list(estimated(1009, cells).values()) == [757, 252]
    cells[1].add(16)
    assert list(estimated(1009, cells).values()) == [750, 259]
    cells[1].add(16, -1)
    assert cells[1].seen == 250


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), max_size=9))
def test_shares_add_up_and_are_in_proportion(total: int, weights: list[int]) -> None:
    shares, whole = shared_out(total, weights), sum(weights)
    assert sum(shares) == (total if whole else 0)
    assert all(abs(share * whole - total * weight) < whole for share, weight in zip(shares, weights, strict=True)
               if whole)  # fmt: skip
