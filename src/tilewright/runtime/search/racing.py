"""Launches trials: each once, to compare its outputs, then the correct ones in a race.

A trial runs on the arguments that the caller's functions return for it. Before each launch, arrays that it only writes
are filled with invalid values, so that elements it leaves out are noticed. Afterwards every array that it could have
written is restored. The race follows the rules of `race.protocol`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilewright.race.protocol import CandidateCrashed, Clock, RaceOutcome, race
from tilewright.race.rules import Policy, cost_of
from tilewright.runtime.arrays import CallerArray, CallValue, LiveArray, is_array
from tilewright.runtime.search.building import Ready, aligned
from tilewright.runtime.search.comparing_outputs import Expected, bits, difference
from tilewright.runtime.search.device import Device, Shot
from tilewright.runtime.search.scratch import Kept, NoRoom, arrays_of, extent, keeping, overlapping, poison, tensor_of
from tilewright.runtime.search.trials import TrialOutcome, array_spec

SECONDS = 1.5
"""The wall time of a race with its warm-up, unless `ROUNDS` take longer."""
ROUNDS = 16
"""The race of long kernels lasts this many rounds: fewer cannot bound a median with the confidence of a race."""


@dataclass(frozen=True)
class BoundTrial:
    """A trial with the arguments of one call of the caller's function."""

    ready: Ready
    args: tuple[CallValue, ...]
    arrays: Mapping[str, CallerArray]

    @classmethod
    def of(cls, ready: Ready) -> BoundTrial:
        args = ready.trial.arguments()
        return cls(ready, args, arrays_of(args, ready.described.names))

    @property
    def written(self) -> list[str]:
        return [name for name in self.arrays if name in self.ready.touched.written]

    @property
    def read(self) -> frozenset[str]:
        """Names of the arrays that are read, directly or through another array that shares their memory."""
        return overlapping(self.arrays, self.ready.touched.read & self.arrays.keys())

    @property
    def in_place(self) -> list[str]:
        """Names of the arrays that are read and written. Each launch reads what the launch before it wrote."""
        read = self.read
        return [name for name in self.written if name in read]


class TrialRunner:
    """Launches trials and compares their outputs with those of a baseline. ``note``: a remark about the baseline."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.expected: dict[str, Expected] = {}
        self.baseline: Ready | None = None
        self.note = ""

    def take_baseline(self, ready: Ready) -> None:
        """Takes the outputs of this trial as the reference. It runs twice, because it may not be deterministic."""
        with self._run(ready, ()) as written:
            first = {name: _copy(array) for name, array in written.items()}
        expected = {}
        with self._run(ready, ()) as written:
            for name, array in written.items():
                expected[name] = Expected(name, first[name], difference(tensor_of(array), first[name]))
        differing = [name for name, output in expected.items() if output.itself.worst]
        if differing:
            worst = max(expected[name].itself.total for name in differing)
            self.note = (
                f"{ready.trial.label} is not deterministic: in two runs its {', '.join(differing)} differ by "
                f"{worst:.2g} of the norm, and others may differ by as much"
            )
        self.expected, self.baseline = expected, ready

    def wrong(self, ready: Ready) -> str | None:
        """Returns why the trial's outputs differ from the baseline's; None if not. Raises what its launch raises."""
        with self._run(ready, self.expected) as written:
            return self._compared(written)

    def wrong_after_timing(self, bound: BoundTrial, launch_again: Callable[[], object]) -> str | None:
        """Compares the outputs of a timed launch, which is repeated. The baseline is not compared with itself."""
        if bound.ready is self.baseline:
            return None
        import torch

        try:
            launch_again()
            reason = self._compared({name: bound.arrays[name] for name in self.expected if name in bound.arrays})
        except CandidateCrashed as crash:
            reason = crash.reason
        except torch.OutOfMemoryError:  # beside the copies that the race needs; its outputs were compared before
            return None
        return reason and f"after timing: {reason}"

    def _compared(self, written: Mapping[str, CallerArray]) -> str | None:
        """Returns why the outputs differ from the baseline's; None if they do not."""
        if missing := [name for name in self.expected if name not in written]:
            return f"'{missing[0]}', which the shipped configuration writes, is not among its arguments"
        if more := [name for name in written if name not in self.expected]:
            return f"it writes '{more[0]}', which the shipped configuration does not"
        reasons = (self.expected[name].wrong(array) for name, array in written.items())
        return next((reason for reason in reasons if reason is not None), None)

    @contextmanager
    def _run(self, ready: Ready, also: Collection[str]) -> Iterator[dict[str, CallerArray]]:
        """Launches once. In the block, the written arrays and those in ``also`` can be read; its end restores them."""
        bound = BoundTrial.of(ready)
        written = {name: bound.arrays[name] for name in bound.arrays if name in {*bound.written, *also}}
        with keeping(list(written.values())):
            read = bound.read
            for name in written:
                if name not in read:
                    poison(written[name])
            self.device.run(ready.trial, bound.args)
            yield written


def _copy(array: CallerArray) -> LiveArray:
    import torch

    try:
        return tensor_of(array).clone(memory_format=torch.contiguous_format)
    except torch.OutOfMemoryError:
        raise NoRoom("a second copy of the written arrays does not fit into memory") from None


@dataclass(frozen=True)
class RacedTrials:
    """``wrong``: why the winner's timed launch is wrong, else None."""

    winner: int | None
    outcomes: tuple[TrialOutcome, ...]
    notes: tuple[str, ...]
    wrong: str | None


def raced(
    field: Sequence[Ready], runner: TrialRunner, policy: Policy, shipped: int | None, show: Callable[[int, int], None]
) -> RacedTrials:
    """Times ``field`` in interleaved rounds. ``shipped``: the index of the trial that wins ties. ``show``: is called
    with the number of rounds and of trials left. Raises NoRoom."""
    with _bound(field, runner) as (trials, shots), runner.device.clock(shots, policy) as (clock, kept):
        notes, wrong = [], None
        if kept.launch != policy.launch:
            notes.append("a launch cannot be captured into a CUDA graph, so launches were timed one by one")
        race_outcome = race(
            len(shots), clock,
            replace(kept, seconds=max(SECONDS, ROUNDS * _round_seconds(clock, len(shots))), max_rounds=400),
            cost=[cost_of(ready.code) for ready in field], shipped=shipped,
            on_look=lambda rounds, live, _: show(rounds, live),
        )  # fmt: skip
        if (winner := race_outcome.winner) is not None:
            wrong = runner.wrong_after_timing(trials[winner], lambda: clock.round([winner]))
    outcomes = tuple(_outcome(race_outcome, index, ready.trial.label) for index, ready in enumerate(field))
    return RacedTrials(winner, outcomes, (*notes, race_outcome.why), wrong)


def _round_seconds(clock: Clock, n: int) -> float:
    """Times one round of all trials. The result is 0 after a crash, which will happen again in the race."""
    try:
        return sum(clock.round(range(n))) * 1e-6
    except CandidateCrashed:
        return 0.0


def _outcome(race_outcome: RaceOutcome, index: int, label: str) -> TrialOutcome:
    candidate, measured = race_outcome.candidates[index], race_outcome.measured(index)
    if candidate.state == "failed" or measured is None:
        return TrialOutcome(label, "failed", candidate.reason, stage="race", error=RuntimeError)
    low, high = measured.interval_us
    margin = (high - low) / 2 if math.isfinite(high) else None  # too few samples for an interval
    return TrialOutcome(label, "timed", candidate.reason, measured.us, margin, len(measured.samples_us))


@contextmanager
def _bound(field: Sequence[Ready], runner: TrialRunner) -> Iterator[tuple[list[BoundTrial], list[Shot]]]:
    """Yields the trials of the race with their arguments, and a shot for each. The caller's function is called once for
    each, even if each call would make new clones. Written arrays are restored afterwards."""
    base = BoundTrial.of(field[0] if runner.baseline is None else runner.baseline)
    written = [base.arrays[name] for name in base.written]
    with keeping(written):
        trials = [_shared(BoundTrial.of(ready), base) for ready in field]
        known = {extent(tensor_of(array)) for array in written}
        arrays = [bound.arrays[name] for bound in trials for name in bound.written]
        others = {where: array for array in arrays if (where := extent(tensor_of(array))) not in known}
        with keeping(list(others.values())):
            inputs: dict[tuple[tuple[int, int], ...], Kept] = {}
            yield trials, [_shot(bound, inputs) for bound in trials]


def _shot(bound: BoundTrial, inputs: dict[tuple[tuple[int, int], ...], Kept]) -> Shot:
    in_place = bound.in_place
    arrays = [bound.arrays[name] for name in in_place]
    where = tuple(extent(tensor_of(array)) for array in arrays)
    if arrays and where not in inputs:
        inputs[where] = Kept(arrays)
    outputs = [tensor_of(bound.arrays[name]) for name in bound.written if name not in in_place]

    def refresh() -> None:
        for output in outputs:
            poison(output)
        if arrays:
            inputs[where].restore()

    return Shot(bound.ready.trial, bound.args, refresh)


def _shared(bound: BoundTrial, base: BoundTrial) -> BoundTrial:
    """Replaces arrays that ``bound`` writes by those of ``base``, if they are copies of these."""
    shared = [name for name in bound.written if name in base.arrays]
    copies = {name: base.arrays[name] for name in shared if _is_copy(bound.arrays[name], base.arrays[name])}
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
    """Returns whether two arrays have different memory, but the same layout and the same bits."""
    import torch

    one, other = tensor_of(array), tensor_of(original)
    if one.data_ptr() == other.data_ptr() or aligned(array_spec(one)) != aligned(array_spec(other)):
        return False
    return bool(torch.equal(bits(one), bits(other)))
