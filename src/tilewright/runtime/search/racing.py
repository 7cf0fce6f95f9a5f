"""The race of the trials that are right: with the caller's arguments, and the rules of `race.protocol`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilewright.race.protocol import CandidateCrashed, Clock, RaceOutcome, race
from tilewright.race.rules import Policy
from tilewright.runtime.arrays import CallerArray, CallValue, is_array
from tilewright.runtime.search.building import Ready, aligned
from tilewright.runtime.search.comparing_outputs import bits
from tilewright.runtime.search.device import Shot
from tilewright.runtime.search.scratch import Kept, extent, keeping, tensor_of
from tilewright.runtime.search.trials import TrialOutcome, array_spec
from tilewright.runtime.search.trying import BoundTrial, TrialRunner

SECONDS = 1.5
"""Wall time of a race, with its warm-up, if that is enough for `ROUNDS`."""
ROUNDS = 16
"""Long kernels get the time for so many: fewer cannot bound a median with the confidence of a race."""
MAX_ROUNDS = 400


@dataclass(frozen=True)
class RacedTrials:
    winner: int | None
    outcomes: tuple[TrialOutcome, ...]
    notes: tuple[str, ...]


def raced(
    field: Sequence[Ready],
    runner: TrialRunner,
    policy: Policy,
    shipped: int | None,
    on_progress: Callable[[int, int], None],
) -> RacedTrials:
    """Times ``field`` in interleaved rounds. ``shipped``: its index there; it wins ties. Raises NoRoom."""
    with _bound(field, runner) as shots, runner.device.clock(shots, policy) as (clock, kept):
        notes = []
        if kept.launch != policy.launch:
            notes.append("a launch cannot be captured into a CUDA graph, so launches were timed one by one")
        race_outcome = race(
            len(shots), clock,
            replace(kept, seconds=max(SECONDS, ROUNDS * _round_seconds(clock, len(shots))), max_rounds=MAX_ROUNDS),
            cost=[_cost(ready) for ready in field], shipped=shipped,
            on_progress=lambda seen: on_progress(seen.rounds, len(seen.live)),
        )  # fmt: skip
    outcomes = tuple(_outcome(race_outcome, index, ready.trial.label) for index, ready in enumerate(field))
    return RacedTrials(race_outcome.winner, outcomes, (*notes, race_outcome.why))


def _round_seconds(clock: Clock, n: int) -> float:
    """The time of one round of all, which does not count. A crash will happen again in the race."""
    try:
        return sum(clock.round(range(n))) * 1e-6
    except CandidateCrashed:
        return 0.0


def _cost(ready: Ready) -> tuple[int, ...]:
    """What a configuration occupies: cluster, registers, shared memory, bytes of code."""
    header = ready.header
    return (header.cluster, header.registers * header.threads, header.shared_bytes, header.code_bytes)


def _outcome(race_outcome: RaceOutcome, index: int, label: str) -> TrialOutcome:
    candidate, measured = race_outcome.candidates[index], race_outcome.measured(index)
    if candidate.state == "failed" or measured is None:
        return TrialOutcome(label, "failed", candidate.reason, stage="race", error=RuntimeError)
    low, high = measured.interval_us
    margin = (high - low) / 2 if math.isfinite(high) else None  # too few samples for an interval
    return TrialOutcome(label, "timed", candidate.reason, measured.us, margin, len(measured.samples_us))


# Arguments ----------------------------------------------------------------------------------------


@contextmanager
def _bound(field: Sequence[Ready], runner: TrialRunner) -> Iterator[list[Shot]]:
    """A shot for each, with arguments for the whole race. Written arrays are restored afterwards. Clones that the
    caller's function makes for each call are replaced by those of the first call."""
    base = BoundTrial.of(field[0] if runner.baseline is None else runner.baseline)
    written = [base.arrays[name] for name in base.written]
    with keeping(written):
        every = [_shared(BoundTrial.of(ready), base) for ready in field]
        known = {extent(tensor_of(array)) for array in written}
        others = {
            extent(tensor_of(bound.arrays[name])): bound.arrays[name] for bound in every for name in bound.written
        }
        with keeping([array for where, array in others.items() if where not in known]):
            inputs: dict[tuple[tuple[int, int], ...], Kept] = {}
            yield [_shot(bound, inputs) for bound in every]


def _shot(bound: BoundTrial, inputs: dict[tuple[tuple[int, int], ...], Kept]) -> Shot:
    arrays = [bound.arrays[name] for name in bound.in_place]
    if not arrays:
        return Shot(bound.ready.trial, bound.args, lambda: None)
    where = tuple(extent(tensor_of(array)) for array in arrays)
    if where not in inputs:
        inputs[where] = Kept(arrays)
    return Shot(bound.ready.trial, bound.args, inputs[where].restore)


def _shared(bound: BoundTrial, base: BoundTrial) -> BoundTrial:
    """With the written arrays of ``base`` in place of its own, if those are copies of them."""
    copies = {
        name: base.arrays[name]
        for name in bound.written
        if name in base.arrays and _is_copy(bound.arrays[name], base.arrays[name])
    }
    if not copies:
        return bound
    replaced = {id(bound.arrays[name]): array for name, array in copies.items()}

    def swapped(value: CallValue) -> CallValue:
        if isinstance(value, (list, tuple)) and any(map(is_array, value)):
            return type(value)(map(swapped, value))
        return replaced.get(id(value), value)

    args = tuple(swapped(value) for value in bound.args)
    return BoundTrial(bound.ready, args, {**bound.arrays, **copies})


def _is_copy(array: CallerArray, original: CallerArray) -> bool:
    """Other memory, the same layout, the same bits."""
    import torch

    mine, its = tensor_of(array), tensor_of(original)
    if mine.data_ptr() == its.data_ptr() or aligned(array_spec(mine)) != aligned(array_spec(its)):
        return False
    return bool(torch.equal(bits(mine), bits(its)))
