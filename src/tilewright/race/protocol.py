"""The race: chooses one of n verified candidates by interleaved, paired times.

    rounds → look → drop the slow → rounds → look … → the most preferred of the tied

A candidate is *live* while it is still timed. Every round times each live candidate once, in a new random order. So
drift and other programs influence all candidates alike. The leader is the live candidate with the smallest median. A
*look* is an interim analysis: it judges all samples so far. Looks are planned before the race. A look decides from the
paired ratios (`rules.look`) whether a candidate is

- screened out: in each of the first 6 rounds it took more than 1.5 × the leader's time. So a slow candidate costs 6
  launches. Even if 1 % of its samples are so slow, the fastest is screened out with a probability of only 1e-12.
- dropped: the interval of its median ratio to the leader lies above 1 + tie band.
- tied: its median ratio to *every* other live candidate is at most 1 + tie band. A tie with the leader alone is not
  enough: if the leader is 0.8 % slower than the fastest, such a candidate may be 1.8 % slower.
- given up: it is so near the tie band that the remaining rounds cannot prove a tie.

The winner is the most preferred candidate among the leader and the tied candidates. The order of preference is: the
shipped candidate, then the cheapest, then the lowest index. Candidates that are dropped or given up cannot win. The
race is settled when the most preferred of all candidates that can still win is tied.

All comparisons and looks of a race share one error budget, 1 - confidence (`stats.tail_per_look`). With that confidence
the fastest is not dropped, and the winner of a settled race is within the tie band of the fastest. If a race uses up
its rounds or seconds, the result says so, and its undecided candidates do not win.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np

from tilewright.race.rules import Look, Plan, Policy, look, plan, preference, settled
from tilewright.race.stats import Array, Interval, Noise, measured_of, noise_of
from tilewright.records import Json, MeasuredTime

SIGN_OF_LIFE = 1.0  # seconds between two reports of progress

State: TypeAlias = Literal["leader", "tied", "dropped", "undecided", "failed"]
Stop: TypeAlias = Literal["settled", "rounds", "seconds", "disturbed", "failed"]
OnLook: TypeAlias = Callable[[int, int, int], None]  # gets the rounds, the number of live candidates, and the leader


class Disturbed(Exception):
    """A clock raises this for a round that does not count. The message is the reason, such as thermal throttling."""


class CandidateCrashed(Exception):
    """A clock raises this if candidate ``index`` crashed and the race can go on without it."""

    def __init__(self, index: int, reason: str):
        super().__init__(f"candidate {index}: {reason}")
        self.index, self.reason = index, reason


class Clock(Protocol):
    """Times candidates. The clock of a GPU queues a whole round, and waits once at its end."""

    def round(self, order: Sequence[int]) -> Sequence[float]:
        """Runs each index of ``order`` once, in that order. Returns the times in µs, in the same order.
        Raises Disturbed or CandidateCrashed; either way the round does not count."""
        ...


@dataclass(frozen=True)
class Raced:
    """The result of one candidate."""

    index: int
    state: State
    reason: str
    ratio: Interval | None  # time / leader's time when the state was decided; None for leader and failed
    rounds: tuple[int, ...] = field(repr=False)  # the round of each sample, to pair the samples of two candidates
    samples_us: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class RaceOutcome:
    """The result of a race and its evidence. ``winner`` is None only if nothing could be measured."""

    policy: Policy
    candidates: tuple[Raced, ...]
    winner: int | None
    leader: int | None
    stop: Stop
    why: str  # why this candidate won, and why the race ended
    rounds: int
    disturbed: int  # rounds that do not count
    disturbances: tuple[str, ...]  # the different reasons of these rounds
    seconds: float
    noise: Noise | None = None

    @property
    def settled(self) -> bool:
        """Whether the winner was shown, with the policy's confidence, to be within the tie band of the fastest."""
        return self.stop == "settled"

    @property
    def tied(self) -> tuple[int, ...]:
        """The leader, and all candidates that were shown to be within the tie band of the fastest."""
        return tuple(c.index for c in self.candidates if c.state in ("leader", "tied"))

    def measured(self, index: int) -> MeasuredTime | None:
        """Returns the measured time of a candidate; None if it has no samples."""
        samples = self.candidates[index].samples_us
        return measured_of(samples) if samples else None

    def to_json(self) -> dict[str, Json]:
        rows = [asdict(c) | {"ratio": c.ratio.to_json() if c.ratio else None} for c in self.candidates]
        noise = self.noise.to_json() if self.noise else None
        return asdict(self) | {"candidates": rows, "noise": noise, "settled": self.settled}


@dataclass(frozen=True)
class Budget:
    """The limits of a timing: at most ``rounds`` rounds and ``seconds`` of wall time.

    The first ``fewest`` rounds run even if the seconds are over.
    """

    rounds: int
    seconds: float
    fewest: int

    def divided(self, parts: int) -> Budget:
        """Returns a budget with 1/``parts`` of the rounds and seconds, but at least one round."""
        return Budget(max(1, self.rounds // parts), self.seconds / parts, max(1, self.fewest // parts))


class Rounds:
    """The samples of candidates 0..n-1, round by round. Only the candidates in ``live`` are timed."""

    def __init__(self, n: int, live: Sequence[int] | None = None) -> None:
        self.n = n
        self.live = list(range(n) if live is None else live)
        self.rows: list[Array] = []  # one row for each round: µs by candidate, nan if it did not run
        self.disturbances: list[str] = []  # the reasons of the rounds that do not count
        self.stop: Stop = "rounds"

    @property
    def samples_us(self) -> tuple[tuple[float, ...], ...]:
        """The samples of each candidate, in µs. If a candidate ran in all rounds, sample r belongs to round r."""
        columns = np.array(self.rows).reshape(len(self.rows), self.n).T
        return tuple(tuple(column[np.isfinite(column)].tolist()) for column in columns)

    def add(self, order: Sequence[int], times_us: Sequence[float]) -> None:
        """Adds the times of one round. Raises ValueError if a time is missing or not positive."""
        times = np.asarray(times_us, dtype=np.float64)
        if times.shape != (len(order),) or not np.all(np.isfinite(times) & (times > 0.0)):
            raise ValueError(f"the clock must return {len(order)} positive times, got {times.tolist()}")
        row = np.full(self.n, np.nan)
        row[list(order)] = times
        self.rows.append(row)

    def ended(self, budget: Budget, seconds: float) -> Stop | None:
        """Returns the reason to end the timing now; None if it continues. ``seconds``: time since the first round."""
        if len(self.rows) >= budget.rounds:
            return "rounds"
        if len(self.disturbances) > budget.rounds:
            return "disturbed"
        if len(self.rows) >= budget.fewest and seconds >= budget.seconds:
            return "seconds"
        return None


def interleaved(
    clock: Clock, rounds: Rounds, budget: Budget, rng: np.random.Generator, *, warmup: int = 0,
    on_round: Callable[[], bool] = lambda: False, on_crash: Callable[[CandidateCrashed], None] | None = None,
    on_progress: Callable[[int], None] = lambda rounds: None, now: Callable[[], float] = time.monotonic,
) -> Rounds:  # fmt: skip
    """Times the candidates in ``rounds.live`` round by round, each round in a new random order.

    Races, confirmations and A/A checks use this loop.

    warmup: rounds at the start that do not count.
    on_round: called after each round that counts. May shorten ``rounds.live``. Returns True to end the loop as settled.
    on_crash: takes the crashed candidate out of ``rounds.live``. Without this function, CandidateCrashed is raised.
    on_progress: called about once a second with the number of counted rounds.
    """
    started = told = now()
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
        if now() - told >= SIGN_OF_LIFE:
            told = now()
            on_progress(done)
    rounds.stop = "failed"
    return rounds


@dataclass(frozen=True)
class _Status:
    state: State
    reason: str
    ratio: Interval | None = None
    against: int | None = None  # the leader when this candidate was dropped


class _Race:
    """The rounds of one race, and the decisions of all looks so far."""

    def __init__(self, rounds: Rounds, policy: Policy, preferred: Sequence[int], planned: Plan) -> None:
        self.rounds, self.policy, self.preferred, self.planned = rounds, policy, preferred, planned
        self.out: dict[int, _Status] = {}  # dropped or crashed candidates; they are not timed any more
        self.seen: Look | None = None
        self.on_look: OnLook = lambda rounds, live, leader: None

    def crashed(self, crash: CandidateCrashed) -> None:
        """Removes the crashed candidate. Candidates that were dropped by comparison with it are timed again."""
        self.rounds.live.remove(crash.index)
        self.out[crash.index] = _Status("failed", f"failed after {len(self.rounds.rows)} rounds: {crash.reason}")
        for index in [index for index, status in self.out.items() if status.against == crash.index]:
            del self.out[index]
            self.rounds.live.append(index)

    def after_round(self) -> bool:
        """Judges the samples if a look is planned after this round. Returns whether the race is settled."""
        return len(self.rounds.rows) in self.planned.looks and self.look()

    def look(self) -> bool:
        """Judges the rounds of all live candidates, and drops slow candidates. Returns whether the race is settled."""
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
        self.on_look(len(rounds.rows), len(rounds.live), seen.leader)
        return seen.rounds >= self.policy.min_rounds and settled(seen, rounds.live, self.preferred)


def race(
    n: int, clock: Clock, policy: Policy, *, cost: Sequence[tuple[int, ...]], shipped: int | None = None,
    rng: np.random.Generator | None = None, noise: Noise | None = None,
    on_look: OnLook | None = None, now: Callable[[], float] = time.monotonic,
) -> RaceOutcome:  # fmt: skip
    """Races candidates 0..n-1 and chooses the winner by the rules in the docstring of this module.

    cost: one tuple for each candidate. Among tied candidates, the candidate with the smallest tuple wins.
    noise: the A/A check of this machine; only copied into the result.
    on_look: called after each look.
    now: returns the time in seconds.
    """
    preferred, rounds, started = preference(n, cost, shipped), Rounds(n), now()
    running = _Race(rounds, policy, preferred, plan(policy, n))
    running.on_look = on_look or running.on_look
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
    """Returns the status of a candidate that was still timed when the race ended."""
    if seen is None:
        return _Status("undecided", "undecided: no round was completed")
    if i == seen.leader:
        return _Status("leader", f"smallest median of the remaining candidates after {seen.rounds} rounds")
    band = f"{policy.tie_band:.1%}"
    text = f"after {seen.rounds} rounds: {seen.ratios[i]} × the leader's time"
    if i in seen.tied:
        return _Status("tied", f"tied {text}, and within {band} of all remaining candidates", seen.ratios[i])
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
    """Times two copies of one kernel against each other, and returns the noise.

    Raises Disturbed after ``rounds`` disturbed rounds.
    """
    pair = Rounds(max(index_a, index_b) + 1, (index_a, index_b))
    interleaved(clock, pair, Budget(rounds, math.inf, rounds), rng, warmup=warmup)
    if len(pair.rows) < rounds:
        raise Disturbed(pair.disturbances[-1])
    samples = pair.samples_us
    return noise_of(samples[index_a], samples[index_b], tie_band=tie_band, confidence=confidence)
