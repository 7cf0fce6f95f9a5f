"""The race: which of n verified candidates to ship, from interleaved, paired times.

    rounds → look → drop the slow → rounds → look … → the most preferred of the tied

Every round times each live candidate once, in a fresh random order, so that drift and neighbours
hit all alike. At planned looks the paired ratios of the rounds decide (`rules.look`):

- screened out: in each of the first 6 rounds more than 1.5 × the leader's time. If one sample of
  the truly fastest does that with probability 1 % (a bad machine), 6 in a row do with 1e-12. A
  candidate that is 30 × slower so costs 6 launches, not 100.
- dropped: the interval of its median ratio to the leader lies wholly above 1 + tie band. Never by
  a mean, never by one sample.
- tied: its median ratio to *every* other live candidate is bounded by 1 + tie band. To the leader
  alone would not do: if that is itself 0.8 % off the fastest, its tied are up to 1.8 % off.
- given up: too near the band for the rounds of the budget to prove a tie; it stays undecided.

The winner is the most preferred of the leader and the tied: the one shipped today, else the cheapest, else the lowest
index. The race is settled when the most preferred of those that are neither dropped nor given up is tied: what is still
open could no longer win. Processes so agree on the winner unless a preferred candidate is truly just inside the band.

All comparisons and looks of a race share one error budget, 1 - confidence (`stats.tail_per_look`):
with that confidence the fastest was not dropped, and the winner of a settled race is within the
tie band of it. A race that runs out of its budget says so, and what it could not decide loses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np

from tilewright.race import stats
from tilewright.race.rules import Look, Plan, Policy, look, plan, preference, settled
from tilewright.race.stats import Array, Interval, Noise, noise_of
from tilewright.records import Json, MeasuredTime

SIGN_OF_LIFE = 1.0
"""Seconds between two words of progress."""

State: TypeAlias = Literal["leader", "tied", "dropped", "undecided", "failed"]
Stop: TypeAlias = Literal["settled", "rounds", "seconds", "disturbed", "failed"]


class Disturbed(Exception):
    """Raised by a clock: this round does not count, e.g. ``thermal throttling``."""


class CandidateCrashed(Exception):
    """Raised by a clock that is ready to go on without candidate ``index``."""

    def __init__(self, index: int, reason: str):
        super().__init__(f"candidate {index}: {reason}")
        self.index = index
        self.reason = reason


class Clock(Protocol):
    """Times candidates. On a GPU: one replay each on cold L2, one synchronisation at the end."""

    def round(self, order: Sequence[int]) -> Sequence[float]:
        """Run each index of ``order`` once, in that order; the times in µs, in the same positions.

        Raises Disturbed or CandidateCrashed; either way the round is thrown away.
        """
        ...


@dataclass(frozen=True)
class Raced:
    """What the race says of one candidate."""

    index: int
    state: State
    reason: str
    ratio: Interval | None
    """Time over the leader's, when its state was decided; None for the leader and the failed."""
    rounds: tuple[int, ...] = field(repr=False)
    """The round of each sample: equal numbers are pairs."""
    samples_us: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class RaceProgress:
    rounds: int
    live: tuple[int, ...]
    leader: int
    disturbed: int


@dataclass(frozen=True)
class RaceOutcome:
    """The evidence and the winner; ``winner`` is None only if nothing could be measured."""

    policy: Policy
    candidates: tuple[Raced, ...]
    winner: int | None
    leader: int | None
    stop: Stop
    why: str
    """Why the winner is the winner, and why the race ended there."""
    rounds: int
    disturbed: int
    """Rounds thrown away."""
    disturbances: tuple[str, ...]
    """The different reasons of the disturbed rounds."""
    seconds: float
    noise: Noise | None = None

    @property
    def settled(self) -> bool:
        """The winner is proven to be within the tie band of the fastest, with the policy's confidence."""
        return self.stop == "settled"

    @property
    def tied(self) -> tuple[int, ...]:
        """The leader and all that are proven to be within the tie band of the fastest."""
        return tuple(c.index for c in self.candidates if c.state in ("leader", "tied"))

    def measured(self, index: int) -> MeasuredTime | None:
        """Median, its 95 % interval and the samples in µs; None if there are none.

        Under six samples nothing gives 95 %: the interval is then (0, inf).
        """
        samples = self.candidates[index].samples_us
        if not samples:
            return None
        interval = stats.median_interval(samples, 0.95)
        return MeasuredTime(interval.centre, (interval.low, interval.high), samples)

    def to_json(self) -> dict[str, Json]:
        rows = [asdict(c) | {"ratio": c.ratio.to_json() if c.ratio else None} for c in self.candidates]
        noise = self.noise.to_json() if self.noise else None
        return asdict(self) | {"candidates": rows, "noise": noise, "settled": self.settled}


@dataclass(frozen=True)
class Budget:
    """At most ``rounds``; at most ``seconds`` of wall time, but at least ``fewest`` rounds however long they take."""

    rounds: int
    seconds: float
    fewest: int


class Rounds:
    """The samples of 0..n-1, round by round; only those in ``live`` are timed."""

    def __init__(self, n: int, live: Sequence[int] | None = None) -> None:
        self.n = n
        self.live = list(range(n) if live is None else live)
        self.rows: list[Array] = []
        """One row a round: µs by candidate, nan where it did not run."""
        self.disturbances: list[str] = []
        """The reasons of the rounds that were thrown away."""
        self.stop: Stop = "rounds"

    @property
    def samples_us(self) -> tuple[tuple[float, ...], ...]:
        """By candidate. The r-th samples of two that ran in all rounds are of the same round."""
        columns = np.array(self.rows).reshape(len(self.rows), self.n).T
        return tuple(tuple(column[np.isfinite(column)].tolist()) for column in columns)

    def add(self, order: Sequence[int], times_us: Sequence[float]) -> None:
        """Keeps the times of one round. Raises ValueError for times that no clock can have measured."""
        times = np.asarray(times_us, dtype=np.float64)
        if times.shape != (len(order),) or not np.all(np.isfinite(times) & (times > 0.0)):
            raise ValueError(f"the clock must return {len(order)} positive times, got {times.tolist()}")
        row = np.full(self.n, np.nan)
        row[list(order)] = times
        self.rows.append(row)

    def ended(self, budget: Budget, seconds: float) -> Stop | None:
        """Why no further round is timed; None if one is. ``seconds``: since the first round began."""
        if len(self.rows) >= budget.rounds:
            return "rounds"
        if len(self.disturbances) > budget.rounds:
            return "disturbed"
        if len(self.rows) >= budget.fewest and seconds >= budget.seconds:
            return "seconds"
        return None


def interleaved(
    clock: Clock,
    rounds: Rounds,
    budget: Budget,
    rng: np.random.Generator,
    *,
    warmup: int = 0,
    on_round: Callable[[], bool] = lambda: False,
    on_crash: Callable[[CandidateCrashed], None] | None = None,
    on_progress: Callable[[int], None] = lambda rounds: None,
    now: Callable[[], float] = time.monotonic,
) -> Rounds:
    """Times ``rounds.live`` of ``clock`` round by round, each round in a fresh random order.

    Everything that is timed goes through this loop: races, confirmations and A/A checks. A disturbed round is
    thrown away.

    warmup: rounds that are timed first and thrown away.
    on_round: called after each round that counts; True ends the loop as settled. It may shorten ``rounds.live``.
    on_crash: takes the crashed candidate out of ``rounds.live``; without it the crash is raised.
    on_progress: called about once a second with the number of rounds.
    """
    started = said = now()
    attempts = 0
    while rounds.live:
        done, attempts = len(rounds.rows), attempts + 1
        if attempts > warmup and (stop := rounds.ended(budget, now() - started)):
            rounds.stop = stop
            return rounds
        order = [int(index) for index in rng.permutation(rounds.live)]
        try:
            times = clock.round(order)
            if attempts > warmup:
                rounds.add(order, times)
                if on_round():
                    rounds.stop = "settled"
                    return rounds
        except Disturbed as disturbance:
            rounds.disturbances.append(str(disturbance))
        except CandidateCrashed as crash:
            if on_crash is None:
                raise
            on_crash(crash)
        if now() - said >= SIGN_OF_LIFE:
            said = now()
            on_progress(done)
    rounds.stop = "failed"
    return rounds


@dataclass(frozen=True)
class _Status:
    state: State
    reason: str
    ratio: Interval | None = None
    against: int | None = None
    """The leader that it was dropped against."""


class _Race:
    """What the looks of one race decided so far, on the rounds that are still being timed."""

    def __init__(self, rounds: Rounds, policy: Policy, preferred: Sequence[int], planned: Plan) -> None:
        self.rounds, self.policy, self.preferred, self.planned = rounds, policy, preferred, planned
        self.out: dict[int, _Status] = {}
        """Those that are timed no more: dropped or crashed."""
        self.seen: Look | None = None
        self.on_progress: Callable[[RaceProgress], None] = lambda progress: None

    def crashed(self, crash: CandidateCrashed) -> None:
        """Remove it, and time those again that were dropped only because it seemed faster."""
        self.rounds.live.remove(crash.index)
        self.out[crash.index] = _Status("failed", f"failed after {len(self.rounds.rows)} rounds: {crash.reason}")
        for index in [index for index, status in self.out.items() if status.against == crash.index]:
            del self.out[index]
            self.rounds.live.append(index)

    def after_round(self) -> bool:
        """Looks if a look is planned now; whether the race is settled."""
        return len(self.rounds.rows) in self.planned.looks and self.look()

    def look(self) -> bool:
        """Judge the rounds in which all live candidates ran, and drop the slow; whether the race is settled."""
        rounds = self.rounds
        times = np.array(rounds.rows)
        times = times[np.isfinite(times[:, rounds.live]).all(axis=1)]
        self.seen = seen = look(times, rounds.live, self.policy, self.planned.tail) if len(times) else None
        if seen is None:
            return False
        for index in seen.dropped:
            reason = f"dropped after {seen.rounds} rounds: {seen.ratios[index]} × the leader's time"
            self.out[index] = _Status("dropped", reason, seen.ratios[index], seen.leader)
        rounds.live = [index for index in rounds.live if index not in seen.dropped]
        self.on_progress(RaceProgress(len(rounds.rows), tuple(rounds.live), seen.leader, len(rounds.disturbances)))
        return seen.rounds >= self.policy.min_rounds and settled(seen, rounds.live, self.preferred)


def race(
    n: int,
    clock: Clock,
    policy: Policy,
    *,
    cost: Sequence[tuple[int, ...]],
    shipped: int | None = None,
    rng: np.random.Generator | None = None,
    noise: Noise | None = None,
    on_progress: Callable[[RaceProgress], None] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> RaceOutcome:
    """Race candidates 0..n-1 of ``clock`` and pick the winner; the docstring of this module has the rules.

    ``cost``: one tuple a candidate, compared lexicographically, the smaller is preferred among the
    tied. ``noise``: the A/A check of this machine, carried in the result. ``now``: seconds.
    """
    preferred, rounds, started = preference(n, cost, shipped), Rounds(n), now()
    running = _Race(rounds, policy, preferred, plan(policy, n))
    running.on_progress = on_progress or running.on_progress
    interleaved(
        clock, rounds, Budget(policy.max_rounds, policy.seconds, 0), rng or np.random.default_rng(policy.seed),
        warmup=policy.warmup_rounds, on_round=running.after_round, on_crash=running.crashed, now=now,
    )  # fmt: skip
    if rounds.stop != "settled" and rounds.rows and rounds.live and running.look():
        rounds.stop = "settled"
    return _outcome(running, shipped, now() - started, noise)


def _outcome(running: _Race, shipped: int | None, seconds: float, noise: Noise | None) -> RaceOutcome:
    rounds, policy = running.rounds, running.policy
    statuses = running.out | {index: _status(index, running.seen, policy) for index in rounds.live}
    rows = np.array(rounds.rows).reshape(len(rounds.rows), rounds.n)
    candidates = []
    for index in range(rounds.n):
        ran, status = np.flatnonzero(np.isfinite(rows[:, index])), statuses[index]
        samples = tuple(rows[ran, index].tolist())
        candidates.append(Raced(index, status.state, status.reason, status.ratio, tuple(ran.tolist()), samples))
    eligible = [index for index in running.preferred if statuses[index].state in ("leader", "tied")]
    winner = eligible[0] if eligible else None
    leader = next((index for index in eligible if statuses[index].state == "leader"), None)
    why = _why(winner, leader, shipped, len(eligible), policy) + _ending(rounds.stop, len(rows), policy)
    return RaceOutcome(
        policy, tuple(candidates), winner, leader, rounds.stop, why, len(rows), len(rounds.disturbances),
        tuple(dict.fromkeys(rounds.disturbances)), seconds, noise,
    )  # fmt: skip


def _status(i: int, seen: Look | None, policy: Policy) -> _Status:
    """State, reason and ratio of a candidate that was still running when the race ended."""
    if seen is None:
        return _Status("undecided", "undecided: no round was completed")
    if i == seen.leader:
        return _Status("leader", f"smallest median of those left after {seen.rounds} rounds")
    band = f"{policy.tie_band:.1%}"
    text = f"after {seen.rounds} rounds: {seen.ratios[i]} × the leader's time"
    if i in seen.tied:
        return _Status("tied", f"tied {text}, and within {band} of all that are left", seen.ratios[i])
    open_ = "the budget could not prove a tie" if i in seen.given_up else "neither proven tied nor slower"
    return _Status("undecided", f"undecided {text}; {open_} (tie band {band})", seen.ratios[i])


def _why(winner: int | None, leader: int | None, shipped: int | None, eligible: int, policy: Policy) -> str:
    band = f"within {policy.tie_band:.1%} of the fastest"
    if winner is None:
        return "nothing was measured"
    if winner == leader and eligible == 1:
        return f"fastest; no other candidate was shown to be within {policy.tie_band:.1%} of it"
    if winner == shipped:
        return f"shipped today, and {band}"
    return f"the cheapest of {eligible} that are {band}"


def _ending(stop: Stop, rounds: int, policy: Policy) -> str:
    if stop == "settled":
        return f"; settled after {rounds} rounds"
    limit = {
        "rounds": "all rounds were used", "seconds": f"the {policy.seconds:g} s were used",
        "disturbed": "too many rounds were disturbed", "failed": "every candidate failed",
    }  # fmt: skip
    return f"; not settled: {limit[stop]} ({rounds} rounds counted)"


def aa_check(
    clock: Clock, index_a: int, index_b: int, rounds: int, rng: np.random.Generator,
    *, warmup: int = 0, tie_band: float = 0.01, confidence: float = 0.99,
) -> Noise:  # fmt: skip
    """Time one kernel, held under two indices, against itself in ``rounds`` rounds of random order.

    Raises Disturbed if more rounds than asked for were disturbed.
    """
    pair = Rounds(max(index_a, index_b) + 1, (index_a, index_b))
    interleaved(clock, pair, Budget(rounds, math.inf, rounds), rng, warmup=warmup)
    if len(pair.rows) < rounds:
        raise Disturbed(pair.disturbances[-1])
    samples = pair.samples_us
    return noise_of(samples[index_a], samples[index_b], tie_band=tie_band, confidence=confidence)
