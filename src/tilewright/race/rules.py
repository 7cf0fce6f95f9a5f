"""The rules of a race as pure functions: the policy, the plan of interim judgements (*looks*), and their decisions.

`protocol.race` runs the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from tilewright.errors import RequestError
from tilewright.race import stats
from tilewright.race.stats import Array, Interval
from tilewright.records import Json, MachineCode

SCREEN_ROUNDS = 6
"""The least number of samples that has a distribution-free 95 % interval. So screened-out candidates also have one."""
SCREEN_RATIO = 1.5
GIVE_UP_TAIL = 1e-3  # probability of giving up a candidate wrongly; this costs only a tie


@dataclass(frozen=True)
class Policy:
    """The settings of a race: how it measures, and when it stops. Every record of a measurement contains its policy.

    max_rounds: 1000 rounds instead of 500 take 30 to 40 % longer. The results of repeated races then differ 35 to 55 %
        less (simulated).
    """

    l2: Literal["cold", "warm"] = "cold"
    launch: Literal["graph", "eager"] = "graph"
    tie_band: float = 0.01  # relative differences up to this do not change the winner
    confidence: float = 0.99  # probability that all claims of a race are true
    warmup_rounds: int = 2
    batch_rounds: int = 8  # fewest rounds between two looks; the distance grows to a sixth of the rounds so far
    min_rounds: int = 16
    max_rounds: int = 1000
    seconds: float = 20.0  # wall time of one race, with warm-up
    seed: int = 0

    def __post_init__(self) -> None:
        for name, share in (("--tie-band", self.tie_band), ("confidence", self.confidence)):
            if not 0.0 < share < 1.0:
                raise RequestError(f"{name} {share:g}: must be between 0 and 1")
        if self.batch_rounds < 1 or not 1 <= self.min_rounds <= self.max_rounds:
            raise RequestError("rounds must satisfy 1 <= batch_rounds and 1 <= min_rounds <= max_rounds")

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """The planned looks of a race. ``tail``: the error probability of each comparison."""

    looks: tuple[int, ...]  # numbers of rounds, ascending; planned before the race, since each look costs confidence
    tail: float


def plan(policy: Policy, n: int) -> Plan:
    """Plans the looks of a race of ``n`` candidates: an early look to screen, and later looks to decide."""
    tail = stats.tail_per_look(policy.confidence, n, len(_looks(policy, policy.min_rounds)))
    # If the first look is later, there are not more looks, so the tail stays valid.
    return Plan(_looks(policy, max(policy.min_rounds, stats.fewest(tail))), tail)


def _looks(policy: Policy, first: int) -> tuple[int, ...]:
    looks = {SCREEN_ROUNDS, policy.max_rounds}
    while first < policy.max_rounds:
        looks.add(first)
        first += max(policy.batch_rounds, first // 6)
    return tuple(sorted(at for at in looks if at <= policy.max_rounds))


def cost_of(code: MachineCode | None) -> tuple[int, ...]:
    """Returns the cost of a configuration as a sort key.

    The key is: CTAs per cluster, registers per CTA, bytes of shared memory per CTA, number of instructions.
    """
    if code is None:
        return (1 << 30,)
    return (code.cluster, code.registers * code.threads, code.shared_bytes, code.instructions)


def preference(n: int, cost: Sequence[tuple[int, ...]], shipped: int | None) -> tuple[int, ...]:
    """Sorts the indices of the candidates by preference: the shipped one, then the cheapest, then the lowest index."""
    if len(cost) != n or (shipped is not None and not 0 <= shipped < n):
        raise RequestError(f"{n} candidates need {n} costs and shipped in 0..{n - 1}, or None")
    return tuple(sorted(range(n), key=lambda i: (i != shipped, tuple(cost[i]), i)))


@dataclass(frozen=True)
class Look:
    """The decisions of one look about the live candidates, by index."""

    rounds: int  # number of rounds in which all live candidates ran
    leader: int
    screened: frozenset[int]  # slower than 1.5 × the leader in every round
    dropped: frozenset[int]  # slower than the tie band, with confidence; includes ``screened``
    tied: frozenset[int]  # within the tie band of all that are not dropped, with confidence
    given_up: frozenset[int]  # the remaining rounds cannot prove a tie
    ratios: Mapping[int, Interval]  # time / leader's time; without the leader itself


def look(times: Array, live: Sequence[int], policy: Policy, tail: float) -> Look:
    """Judges paired times. Each claim in the result is wrong with a probability of at most ``tail``.

    times: µs, shape (rounds, candidates), finite in the columns of the live candidates.
    """
    limit, rounds = 1.0 + policy.tie_band, len(times)
    leader = live[stats.fastest(times[:, list(live)])]
    others = {i: times[:, i] / times[:, leader] for i in live if i != leader}
    ratios = {i: stats.median_interval(ratio, 1.0 - 2.0 * tail) for i, ratio in others.items()}
    screened = {i for i in others if rounds >= SCREEN_ROUNDS and others[i].min() > SCREEN_RATIO}
    # A screened candidate may have too few rounds for the race's confidence, so it gets a 95 % interval.
    ratios |= {i: stats.median_interval(others[i], 0.95) for i in screened if not ratios[i].decided}
    dropped = screened | {i for i in others if ratios[i].low > limit}
    left = [i for i in live if i not in dropped]
    tied = {
        i for i in left
        if (i == leader or ratios[i].high <= limit)
        and bool(np.all(stats.bounds(times[:, [i]] / times[:, left], tail)[1] <= limit))
    }  # fmt: skip
    given_up = {i for i in left if i not in tied | {leader} and _hopeless(others[i], policy, tail)}
    sets = (frozenset(screened), frozenset(dropped), frozenset(tied), frozenset(given_up))
    return Look(rounds, leader, *sets, ratios)


def settled(seen: Look, live: Sequence[int], preferred: Sequence[int]) -> bool:
    """Tells whether the winner is final: the most preferred candidate that can still win is tied."""
    can_win = [i for i in preferred if i in live and i not in seen.dropped | seen.given_up]
    return bool(can_win) and can_win[0] in seen.tied


def _hopeless(ratios: Array, policy: Policy, tail: float) -> bool:
    """Tells whether a tie cannot be proven any more, even if all remaining rounds have the lowest plausible median.

    Without this rule, a candidate at 1.01 × the leader's time would keep a race running until its budget ends.
    """
    at_best = float(stats.bounds(ratios, GIVE_UP_TAIL)[0])
    final = stats.expected_half_width(stats.spread(ratios), policy.max_rounds, tail)
    return at_best + final > 1.0 + policy.tie_band
