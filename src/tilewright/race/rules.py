"""The rules of a race as pure functions: the policy, the plan of looks, and what one look decides.

`protocol.race` runs the clock; everything that turns samples into a verdict is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from tilewright.errors import RequestError
from tilewright.race import stats
from tilewright.race.stats import Array, Interval
from tilewright.records import Json

SCREEN_ROUNDS = 6
"""Also the fewest samples that have a distribution-free 95 % interval, so the slow have one too."""
SCREEN_RATIO = 1.5
GIVE_UP_TAIL = 1e-3
"""Error allowed when a candidate is given up as too near the band: at worst it costs a tie."""


@dataclass(frozen=True)
class Policy:
    """How a race measures and when it stops; part of every record of a measurement."""

    l2: Literal["cold", "warm"] = "cold"
    launch: Literal["graph", "eager"] = "graph"
    tie_band: float = 0.01
    """Differences up to this share of the time are not worth a change of winner."""
    confidence: float = 0.99
    """Of a whole race: the fastest is not dropped and a settled winner is within the tie band."""
    warmup_rounds: int = 2
    """Timed and thrown away."""
    batch_rounds: int = 8
    """Fewest rounds between two looks; the gap grows to a sixth of the rounds so far."""
    min_rounds: int = 16
    max_rounds: int = 1000
    """Against 500: 30 to 40 % more wall time, 35 to 55 % fewer disagreements of processes (simulated)."""
    seconds: float = 20.0
    """Wall time of one race, warm-up included."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, share in (("--tie-band", self.tie_band), ("confidence", self.confidence)):
            if not 0.0 < share < 1.0:
                raise RequestError(f"{name} {share:g}: must lie between 0 and 1")
        if self.batch_rounds < 1 or not 1 <= self.min_rounds <= self.max_rounds:
            raise RequestError("rounds must satisfy 1 <= batch_rounds and 1 <= min_rounds <= max_rounds")

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """When a race looks at its samples, and the error that each comparison of a look may have."""

    looks: tuple[int, ...]
    """Rounds, ascending. Planned before the race, since each look costs confidence."""
    tail: float


def plan(policy: Policy, n: int) -> Plan:
    """The looks of a race of ``n``: one to screen, then from the first that could decide anything."""
    tail = stats.tail_per_look(policy.confidence, n, len(_looks(policy, policy.min_rounds)))
    # Starting later makes no more looks, so the tail stays valid.
    return Plan(_looks(policy, max(policy.min_rounds, stats.fewest(tail))), tail)


def _looks(policy: Policy, first: int) -> tuple[int, ...]:
    looks = {SCREEN_ROUNDS, policy.max_rounds}
    while first < policy.max_rounds:
        looks.add(first)
        first += max(policy.batch_rounds, first // 6)
    return tuple(sorted(at for at in looks if at <= policy.max_rounds))


def preference(n: int, cost: Sequence[tuple[int, ...]], shipped: int | None) -> tuple[int, ...]:
    """Indices, the most preferred first: shipped today, then cheapest, then lowest index."""
    if len(cost) != n or (shipped is not None and not 0 <= shipped < n):
        raise RequestError(f"{n} candidates need {n} costs and shipped in 0..{n - 1}, or None")
    return tuple(sorted(range(n), key=lambda i: (i != shipped, tuple(cost[i]), i)))


@dataclass(frozen=True)
class Look:
    """What the samples of the live candidates say; every number is the index of a candidate."""

    rounds: int
    """Rounds in which all of them ran."""
    leader: int
    screened: frozenset[int]
    """Slower than 1.5 × the leader in every single round."""
    dropped: frozenset[int]
    """Slower than the tie band with confidence; includes ``screened``."""
    tied: frozenset[int]
    """Within the tie band of every candidate that is not dropped, with confidence."""
    given_up: frozenset[int]
    """So near the band, or beyond it, that the rounds of the budget will not prove a tie."""
    ratios: Mapping[int, Interval]
    """Time over the leader's time, of all but the leader."""


def look(times: Array, live: Sequence[int], policy: Policy, tail: float) -> Look:
    """Judge the paired ``times`` in µs of the ``live`` columns; each claim is wrong with at most ``tail``.

    ``times``: shape (rounds, candidates), finite where the candidate is live.
    """
    limit, rounds = 1.0 + policy.tie_band, len(times)
    leader = live[stats.fastest(times[:, list(live)])]
    others = {i: times[:, i] / times[:, leader] for i in live if i != leader}
    ratios = {i: stats.median_interval(ratio, 1.0 - 2.0 * tail) for i, ratio in others.items()}
    screened = {i for i in others if rounds >= SCREEN_ROUNDS and others[i].min() > SCREEN_RATIO}
    # What was screened out may be too young for the race's confidence: it gets an ordinary interval.
    ratios |= {i: stats.median_interval(others[i], 0.95) for i in screened if not ratios[i].decided}
    dropped = screened | {i for i in others if ratios[i].low > limit}
    left = [i for i in live if i not in dropped]
    tied = {
        i for i in left
        if (i == leader or ratios[i].high <= limit)
        and bool(np.all(stats.bounds(times[:, [i]] / times[:, left], tail)[1] <= limit))
    }  # fmt: skip
    given_up = {i for i in left if i not in tied | {leader} and _hopeless(others[i], policy, tail)}
    return Look(
        rounds, leader, frozenset(screened), frozenset(dropped), frozenset(tied), frozenset(given_up), ratios
    )  # fmt: skip


def settled(seen: Look, live: Sequence[int], preferred: Sequence[int]) -> bool:
    """Whether more rounds could still change the winner: the most preferred that can win, is tied."""
    can_win = [i for i in preferred if i in live and i not in seen.dropped | seen.given_up]
    return bool(can_win) and can_win[0] in seen.tied


def _hopeless(ratios: Array, policy: Policy, tail: float) -> bool:
    """Whether the upper bound would stay above the band even after ``max_rounds``.

    Judged from the lowest median that is still plausible. Without this a candidate at 1.01 × the
    leader's time holds each race until its budget ends, and is undecided all the same.
    """
    at_best = float(stats.bounds(ratios, GIVE_UP_TAIL)[0])
    final = stats.expected_half_width(stats.spread(ratios), policy.max_rounds, tail)
    return at_best + final > 1.0 + policy.tie_band
