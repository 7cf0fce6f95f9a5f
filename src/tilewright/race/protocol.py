"""The race: which of n verified candidates to ship, from interleaved, paired times.

    rounds → look → drop the slow → rounds → look … → the most preferred of the tied

Every round times each live candidate once, in a fresh random order, so that drift and neighbours
hit all alike (trust.md 24). At planned looks the paired ratios of the rounds decide (`rules.look`):

- screened out: in each of the first 6 rounds more than 1.5 × the leader's time. If one sample of
  the truly fastest does that with probability 1 % (a bad machine), 6 in a row do with 1e-12. A
  candidate that is 30 × slower so costs 6 launches, not 100.
- dropped: the interval of its median ratio to the leader lies wholly above 1 + tie band. Never by
  a mean, never by one sample.
- tied: its median ratio to *every* other live candidate is bounded by 1 + tie band. To the leader
  alone would not do: if that is itself 0.8 % off the fastest, its tied are up to 1.8 % off.
- given up: too near the band for the rounds of the budget to prove a tie; it stays undecided.

The winner is the most preferred of the leader and the tied: the one shipped today, else the
cheapest, else the lowest index. The race is settled when the most preferred of those that are
neither dropped nor given up is tied: what is still open could no longer win. Processes so agree
on the winner unless a preferred candidate is truly just inside the band (trust.md 28; the rates
are in tests/bench/test_protocol.py).

All comparisons and looks of a race share one error budget, 1 - confidence (`stats.tail_per_look`):
with that confidence the fastest was not dropped, and the winner of a settled race is within the
tie band of it. A race that runs out of its budget says so, and what it could not decide loses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from tilewright.race import stats
from tilewright.race.rules import Look, Policy, look, plan, preference, settled
from tilewright.race.stats import Array, Interval
from tilewright.records import MeasuredTime

__all__ = [
    "CandidateCrashed", "Clock", "Disturbed", "Noise", "Policy", "Progress", "RaceOutcome", "Raced",
    "aa_check", "noise_of", "race",
]  # fmt: skip

State: TypeAlias = Literal["leader", "tied", "dropped", "undecided", "failed"]
Stop: TypeAlias = Literal["settled", "rounds", "seconds", "disturbed", "failed"]


class Disturbed(Exception):
    """Raised by a clock: this round does not count, e.g. ``thermal throttling`` (trust.md 25)."""


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
class Noise:
    """What this machine's clock says of two copies of one kernel: the A/A check (trust.md 24)."""

    ratio: Interval
    """Median of the paired ratios; the truth is 1."""
    spread: float
    """Relative spread of one sample within a round (one sigma, robust)."""
    rounds: int
    biased: bool
    """The interval is further from 1 than half the tie band: the clock prefers a position or a buffer."""
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio.to_json()}


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
class Progress:
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

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(c) | {"ratio": c.ratio.to_json() if c.ratio else None} for c in self.candidates]
        noise = self.noise.to_json() if self.noise else None
        return asdict(self) | {"candidates": rows, "noise": noise, "settled": self.settled}


@dataclass(frozen=True)
class _Fallen:
    state: State
    reason: str
    ratio: Interval | None = None
    against: int | None = None
    """The leader that it was dropped against."""


class _Track:
    """The samples, the fallen and the last look: the only thing in a race that changes."""

    def __init__(self, n: int):
        self.n = n
        self.rows: list[Array] = []
        """One row a round: µs by candidate, nan where it did not run."""
        self.live = list(range(n))
        self.fallen: dict[int, _Fallen] = {}
        self.disturbed: list[str] = []
        self.seen: Look | None = None

    def run(self, clock: Clock, rng: np.random.Generator, keep: bool = True) -> None:
        """One round of the live candidates in random order; a thrown-away round leaves its reason."""
        order = [int(i) for i in rng.permutation(self.live)]
        try:
            times = np.asarray(clock.round(order), dtype=np.float64)
        except Disturbed as disturbance:
            self.disturbed.append(str(disturbance))
            return
        except CandidateCrashed as crash:
            self.crashed(crash)
            return
        if times.shape != (len(order),) or not np.all(np.isfinite(times) & (times > 0.0)):
            raise ValueError(f"the clock must return {len(order)} positive times, got {times.tolist()}")
        if keep:
            row = np.full(self.n, np.nan)
            row[order] = times
            self.rows.append(row)

    def crashed(self, crash: CandidateCrashed) -> None:
        """Remove it, and let those run again that were dropped only because it seemed faster."""
        self.live.remove(crash.index)
        self.fallen[crash.index] = _Fallen("failed", f"failed after {len(self.rows)} rounds: {crash.reason}")
        for index in [i for i, fallen in self.fallen.items() if fallen.against == crash.index]:
            del self.fallen[index]
            self.live.append(index)

    def judge(self, policy: Policy, tail: float) -> Look | None:
        """Look at the rounds in which all live candidates ran, and let the dropped fall."""
        times = np.array(self.rows)
        times = times[np.isfinite(times[:, self.live]).all(axis=1)]
        self.seen = seen = look(times, self.live, policy, tail) if len(times) else None
        if seen:
            for i in seen.dropped:
                reason = f"dropped after {seen.rounds} rounds: {seen.ratios[i]} × the leader's time"
                self.fallen[i] = _Fallen("dropped", reason, seen.ratios[i], seen.leader)
            self.live = [i for i in self.live if i not in seen.dropped]
        return seen


def race(
    n: int,
    clock: Clock,
    policy: Policy,
    *,
    cost: Sequence[tuple[Any, ...]],
    shipped: int | None = None,
    rng: np.random.Generator | None = None,
    noise: Noise | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> RaceOutcome:
    """Race candidates 0..n-1 of ``clock`` and pick the winner; the rules stand at the top of this module.

    ``cost``: one tuple a candidate, compared lexicographically, the smaller is preferred among the
    tied. ``noise``: the A/A check of this machine, carried in the result. ``now``: seconds.
    """
    preferred, planned = preference(n, cost, shipped), plan(policy, n)
    rng = rng if rng is not None else np.random.default_rng(policy.seed)
    track, started = _Track(n), now()
    for _ in range(policy.warmup_rounds if n else 0):
        track.run(clock, rng, keep=False)
    stop: Stop = "rounds"
    for at in planned.looks:
        ended = _rounds_until(at, track, clock, rng, policy, lambda: now() - started)
        seen = track.judge(policy, planned.tail) if track.rows and track.live else None
        if seen and on_progress:
            on_progress(Progress(len(track.rows), tuple(track.live), seen.leader, len(track.disturbed)))
        if seen and seen.rounds >= policy.min_rounds and settled(seen, track.live, preferred):
            ended = "settled"
        if ended:
            stop = ended
            break
    return _outcome(track, policy, preferred, shipped, stop, now() - started, noise)


def _rounds_until(
    target: int, track: _Track, clock: Clock, rng: np.random.Generator, policy: Policy,
    elapsed: Callable[[], float],
) -> Stop | None:  # fmt: skip
    """Time rounds until ``target`` are kept; the reason if the budget ended first."""
    while len(track.rows) < target:
        if not track.live:
            return "failed"
        if len(track.disturbed) > policy.max_rounds:
            return "disturbed"
        if elapsed() >= policy.seconds:
            return "seconds"
        track.run(clock, rng)
    return None


def _outcome(
    track: _Track, policy: Policy, preferred: Sequence[int], shipped: int | None,
    stop: Stop, seconds: float, noise: Noise | None,
) -> RaceOutcome:  # fmt: skip
    standings = track.fallen | {i: _standing(i, track.seen, policy) for i in track.live}
    rows = np.array(track.rows).reshape(len(track.rows), track.n)
    candidates = []
    for i in range(track.n):
        ran, standing = np.flatnonzero(np.isfinite(rows[:, i])), standings[i]
        rounds, samples = tuple(ran.tolist()), tuple(rows[ran, i].tolist())
        candidates.append(Raced(i, standing.state, standing.reason, standing.ratio, rounds, samples))
    eligible = [i for i in preferred if standings[i].state in ("leader", "tied")]
    winner = eligible[0] if eligible else None
    leader = next((i for i in eligible if standings[i].state == "leader"), None)
    why = _why(winner, leader, shipped, len(eligible), policy) + _ending(stop, len(rows), policy)
    return RaceOutcome(
        policy, tuple(candidates), winner, leader, stop, why, len(rows), len(track.disturbed),
        tuple(dict.fromkeys(track.disturbed)), seconds, noise,
    )  # fmt: skip


def _standing(i: int, seen: Look | None, policy: Policy) -> _Fallen:
    """State, reason and ratio of a candidate that was still running when the race ended."""
    if seen is None:
        return _Fallen("undecided", "undecided: no round was completed")
    if i == seen.leader:
        return _Fallen("leader", f"smallest median of those left after {seen.rounds} rounds")
    band = f"{policy.tie_band:.1%}"
    text = f"after {seen.rounds} rounds: {seen.ratios[i]} × the leader's time"
    if i in seen.tied:
        return _Fallen("tied", f"tied {text}, and within {band} of all that are left", seen.ratios[i])
    open_ = "the budget could not prove a tie" if i in seen.given_up else "neither proven tied nor slower"
    return _Fallen("undecided", f"undecided {text}; {open_} (tie band {band})", seen.ratios[i])


def _why(winner: int | None, leader: int | None, shipped: int | None, eligible: int, policy: Policy) -> str:
    band = f"within {policy.tie_band:.1%} of the fastest"
    if winner is None:
        return "nothing was measured"
    if winner == leader and eligible == 1:
        return "the leader; nothing else is proven to tie with it"
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
    *, tie_band: float = 0.01, confidence: float = 0.99,
) -> Noise:  # fmt: skip
    """Time one kernel, held under two indices, against itself in ``rounds`` rounds of random order.

    Raises Disturbed if as many rounds as asked for were disturbed.
    """
    pairs: list[tuple[float, float]] = []
    disturbed = 0
    while len(pairs) < rounds:
        order = [index_a, index_b] if rng.random() < 0.5 else [index_b, index_a]
        try:
            timed = dict(zip(order, clock.round(order), strict=True))
        except Disturbed:
            disturbed += 1
            if disturbed >= rounds:
                raise
            continue
        pairs.append((timed[index_a], timed[index_b]))
    return noise_of([a for a, _ in pairs], [b for _, b in pairs], tie_band=tie_band, confidence=confidence)


def noise_of(
    a_us: Sequence[float], b_us: Sequence[float], *, tie_band: float = 0.01, confidence: float = 0.99
) -> Noise:
    """The verdict of an A/A check on its paired times in µs."""
    ratio = stats.ratio_interval(a_us, b_us, confidence)
    # The ratio carries the noise of two samples: sqrt 2 of one.
    spread = stats.spread(np.asarray(a_us) / np.asarray(b_us)) / 2**0.5
    biased = ratio.decided and (ratio.low > 1.0 + tie_band / 2 or ratio.high < 1.0 - tie_band / 2)
    why = f"two copies of one kernel differ by {ratio.centre - 1.0:+.2%} ({ratio}); one sample spreads {spread:.2%}"
    if not ratio.decided:
        why = f"{len(a_us)} rounds are too few for an interval"
    elif biased:
        why += f": biased by more than half the tie band of {tie_band:.1%}; do not trust small differences"
    elif stats.distinct(a_us) * 8 < len(a_us):
        why += f"; the timer's step shows: {stats.distinct(a_us)} different times in {len(a_us)} rounds"
    return Noise(ratio, spread, len(a_us), biased, why)
