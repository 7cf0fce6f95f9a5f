"""Launches trials for `worker.client`: each once, to compare its outputs, then the correct ones in a race.

A trial runs on the arguments that the caller's functions return for it. Before each launch, arrays that it only writes
are filled with invalid values, so that elements it leaves out are noticed. Afterwards every array that it could have
written is restored. The race follows the rules of `race.protocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import MachineError, in_one_line
from tilewright.executors.base import ignore
from tilewright.race.protocol import CandidateCrashed, Clock, race
from tilewright.race.rules import cost_of
from tilewright.records import Checked, Configuration
from tilewright.runtime.arrays import CallerArray, CallValue, LiveArray, is_array
from tilewright.runtime.search.building import Ready, aligned
from tilewright.runtime.search.comparing_outputs import Expected, bits, difference
from tilewright.runtime.search.device import Device, Shot
from tilewright.runtime.search.scratch import (
    Kept,
    NoRoom,
    address_range,
    arrays_of,
    keeping,
    overlapping,
    poison,
    tensor_of,
)
from tilewright.runtime.search.trials import array_spec
from tilewright.worker import messages as ask
from tilewright.worker.client import Contestant
from tilewright.worker.outcome import Outcome

SECONDS = 1.5
"""The wall time of a race with its warm-up, unless `ROUNDS` take longer."""
ROUNDS = 16
"""A race has time for at least this many rounds. With fewer, it could not bound a median with enough confidence."""


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
        """Names of the arrays that are read, directly or through another array in the same memory."""
        return overlapping(self.arrays, self.ready.touched.read & self.arrays.keys())

    @property
    def in_place(self) -> list[str]:
        """Names of the arrays that are both read and written. Each launch reads data that the previous launch wrote."""
        read = self.read
        return [name for name in self.written if name in read]


class TrialRunner:
    """Launches trials in the user's process. The first trial that works is the reference.

    ready: the trials by index, as `contestant` numbers them.
    errors: the class of the error that a trial's launch raised, by index.
    times: the time of each trial in the last race, in µs, by index.
    notes: remarks about the reference and the races.
    instructions_known: whether the number of instructions was read in the same way for all trials, so that it may
        decide between tied ones.
    """

    def __init__(self, device: Device, ready: Mapping[int, Ready]) -> None:
        self.device, self.ready = device, ready
        self.expected: dict[str, Expected] = {}
        self.reference: Ready | None = None
        self.errors: dict[int, type[Exception]] = {}
        self.times: dict[int, float] = {}
        self.notes: dict[str, None] = {}
        self.instructions_known = True

    def contestant(self, index: int) -> Contestant:
        cost = cost_of(self.ready[index].code)
        source = ask.Configured(Configuration.of({"place": index}))
        return Contestant(str(index), source, cost if self.instructions_known else cost[:-1])

    def run(
        self, step: ask.Step[Any], *, silence: float | None = None, on_progress: Callable[[Any], None] = ignore
    ) -> Any:
        """Answers the steps of a verification and a race. Raises MachineError and NoRoom."""
        if isinstance(step, ask.RaceField):
            return Outcome("PASSED", self._raced(step, on_progress))
        if isinstance(step, ask.CheckOutputs):
            return self._checked(_index(step.source))
        return Outcome("PASSED", ask.InputsReady((), new=False))  # the inputs are the caller's own

    def _checked(self, index: int) -> Outcome[ask.OutputsChecked]:
        try:
            if self.reference is None:
                self._take_reference(self.ready[index])
                checked = Checked("correct", "the others are compared with it")
                return Outcome("PASSED", ask.OutputsChecked(checked))
            wrong = self._wrong(self.ready[index])
        except (MachineError, NoRoom):
            raise
        except Exception as error:  # raised by the launch, or by the caller's functions
            self.errors[index] = type(error)
            return Outcome("FAILED", reason=in_one_line(error))
        checked = Checked("incorrect" if wrong else "correct", wrong or "as the reference")
        return Outcome("PASSED", ask.OutputsChecked(checked))

    def _raced(self, step: ask.RaceField, on_progress: Callable[[ask.Advanced], None]) -> ask.FieldRaced:
        """Times trials in interleaved rounds, and checks the winner's timed launch."""
        policy, indices = step.policy, [_index(source) for source in step.sources]
        field = [self.ready[index] for index in indices]
        with _bound(field, self) as (trials, shots), self.device.clock(shots, policy) as (clock, kept):
            if kept.launch != policy.launch:
                self.notes["a launch cannot be captured into a CUDA graph, so launches were timed one by one"] = None
            outcome = race(
                len(shots), clock,
                replace(kept, seconds=max(SECONDS, ROUNDS * _round_seconds(clock, len(shots))), max_rounds=400),
                cost=step.costs, shipped=step.shipped,
                on_look=lambda rounds, live, leader: on_progress(ask.Advanced(rounds, live, leader)),
            )  # fmt: skip
            winner, wrong = outcome.winner, None
            if winner is not None:
                wrong = self._wrong_after_timing(trials[winner], lambda: clock.round([winner]))
        measured = {index: outcome.measured(place) for place, index in enumerate(indices)}
        self.times = {index: time.us for index, time in measured.items() if time is not None}
        return ask.FieldRaced(outcome, {}, wrong)

    def _take_reference(self, ready: Ready) -> None:
        """Takes the outputs of this trial as the reference. The trial runs twice, because its kernel might not be
        deterministic.
        """
        with self._run(ready, ()) as written:
            first = {name: _copy(array) for name, array in written.items()}
        expected = {}
        with self._run(ready, ()) as written:
            for name, array in written.items():
                expected[name] = Expected(name, first[name], difference(tensor_of(array), first[name]))
        differing = [name for name, output in expected.items() if output.itself.worst]
        if differing:
            worst = max(expected[name].itself.total for name in differing)
            note = (
                f"{ready.trial.label} is not deterministic: in two runs its {', '.join(differing)} differ by "
                f"{worst:.2g} of the norm, and others may differ by as much"
            )
            self.notes[note] = None
        self.expected, self.reference = expected, ready

    def _wrong(self, ready: Ready) -> str | None:
        """Returns why the trial's outputs differ from the reference's; None if they do not. Raises the errors of
        the launch."""
        with self._run(ready, self.expected) as written:
            return self._compared(written)

    def _wrong_after_timing(self, bound: BoundTrial, launch_again: Callable[[], object]) -> str | None:
        """Launches a timed trial again and compares its outputs. Returns why they differ from the reference's; None if
        they do not. The reference itself is not compared."""
        if bound.ready is self.reference:
            return None
        import torch

        try:
            launch_again()
            reason = self._compared({name: bound.arrays[name] for name in self.expected if name in bound.arrays})
        except CandidateCrashed as crash:
            reason = crash.reason
        except torch.OutOfMemoryError:  # the outputs were compared before the race, too
            return None
        return reason and f"after timing: {reason}"

    def _compared(self, written: Mapping[str, CallerArray]) -> str | None:
        """Returns why the outputs differ from the reference's; None if they do not."""
        if missing := [name for name in self.expected if name not in written]:
            return f"'{missing[0]}', which the reference configuration writes, is not among its arguments"
        if more := [name for name in written if name not in self.expected]:
            return f"it writes '{more[0]}', which the reference configuration does not"
        reasons = (self.expected[name].wrong(array) for name, array in written.items())
        return next((reason for reason in reasons if reason is not None), None)

    @contextmanager
    def _run(self, ready: Ready, also: Collection[str]) -> Iterator[dict[str, CallerArray]]:
        """Launches once. In the block, written arrays and arrays in ``also`` can be read. Its end restores them."""
        bound = BoundTrial.of(ready)
        written = {name: bound.arrays[name] for name in bound.arrays if name in {*bound.written, *also}}
        with keeping(list(written.values())):
            read = bound.read
            for name in written:
                if name not in read:
                    poison(written[name])
            ready.trial.before()
            self.device.run(ready.trial, bound.args)
            yield written


def _copy(array: CallerArray) -> LiveArray:
    import torch

    try:
        return tensor_of(array).clone(memory_format=torch.contiguous_format)
    except torch.OutOfMemoryError:
        raise NoRoom("a second copy of the written arrays does not fit into memory") from None


def _index(source: ask.Source) -> int:
    """Returns the index in `TrialRunner.ready` that `TrialRunner.contestant` put into ``source``."""
    assert isinstance(source, ask.Configured)
    return int(source.configuration.place)


def _round_seconds(clock: Clock, n: int) -> float:
    """Times one round of all trials, in seconds. Returns 0 after a crash, because the same crash will happen again in
    the race."""
    try:
        return sum(clock.round(range(n))) * 1e-6
    except CandidateCrashed:
        return 0.0


@contextmanager
def _bound(field: Sequence[Ready], runner: TrialRunner) -> Iterator[tuple[list[BoundTrial], list[Shot]]]:
    """Yields the trials of the race with their arguments, and a shot for each. The caller's function is called once for
    each trial, even if each call would make new clones. Written arrays are restored afterwards."""
    base = BoundTrial.of(field[0] if runner.reference is None else runner.reference)
    written = [base.arrays[name] for name in base.written]
    with keeping(written):
        trials = [_shared(BoundTrial.of(ready), base) for ready in field]
        known = {address_range(tensor_of(array)) for array in written}
        arrays = [bound.arrays[name] for bound in trials for name in bound.written]
        others = {where: array for array in arrays if (where := address_range(tensor_of(array))) not in known}
        with keeping(list(others.values())):
            inputs: dict[tuple[tuple[int, int], ...], Kept] = {}
            yield trials, [_shot(bound, inputs) for bound in trials]


def _shot(bound: BoundTrial, inputs: dict[tuple[tuple[int, int], ...], Kept]) -> Shot:
    in_place = bound.in_place
    arrays = [bound.arrays[name] for name in in_place]
    where = tuple(address_range(tensor_of(array)) for array in arrays)
    if arrays and where not in inputs:
        inputs[where] = Kept(arrays)
    outputs = [tensor_of(bound.arrays[name]) for name in bound.written if name not in in_place]

    def refresh() -> None:
        for output in outputs:
            poison(output)
        if arrays:
            inputs[where].restore()
        bound.ready.trial.before()

    return Shot(bound.ready.trial, bound.args, refresh)


def _shared(bound: BoundTrial, base: BoundTrial) -> BoundTrial:
    """If an array that ``bound`` writes is a copy of an array of ``base``, replaces it by the array of ``base``."""
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
