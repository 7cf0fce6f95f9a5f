"""Verifies and races contestants. A contestant is a configuration, or a version of the code.

`tune`, `optimize` and the search in the caller's process use this client. The executor decides about correctness. A
worker process compares outputs with a float64 reference. `runtime.search.racing.TrialRunner` compares outputs with the
live outputs of the shipped configuration. A contestant that hangs, crashes or is wrong is eliminated with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import MachineError
from tilewright.executors.base import StepRunner
from tilewright.progress import BEST, Progress, silent, timed
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.race.stats import measured_of
from tilewright.records import Checked, Json, MeasuredTime
from tilewright.task.task import Task
from tilewright.worker import messages as ask
from tilewright.worker.messages import Advanced, Source
from tilewright.worker.outcome import Outcome

PREPARE_SILENCE = 180.0  # seconds: drawing the inputs and computing the float64 references takes long
TooFast = Callable[[str, "Contestant", float], str | None]
KEPT = ("policy", "noise", "why", "stop", "settled", "rounds", "disturbed", "disturbances", "seconds")
"""The fields of a `RaceOutcome` that the record of a race keeps."""


@dataclass(frozen=True)
class Contestant:
    """A configuration or version that is verified and timed."""

    name: str
    source: Source
    cost: tuple[int, ...] = ()  # if times tie, the contestant with the smallest cost wins
    task: Task | None = field(default=None, compare=False, repr=False)  # the code of a version; None: the run's task


@dataclass(frozen=True)
class Eliminated:
    """A contestant that crashed, hung, could not be launched, or was wrong."""

    name: str
    why: str
    checked: Checked | None = None  # the verdict, if its outputs are wrong
    stage: str = ""  # where it crashed, hung or could not be launched

    @property
    def reason(self) -> str:
        return f"{self.stage}: {self.why}" if self.stage else self.why


@dataclass(frozen=True)
class Finisher:
    """The result of a contestant that was raced."""

    name: str
    state: str  # as in `protocol.Raced`
    reason: str
    measured: MeasuredTime | None


@dataclass(frozen=True)
class RaceResult:
    """The result of a race on one workload. ``raced`` is empty if no race was completed."""

    raced: tuple[Finisher, ...]
    eliminated: tuple[Eliminated, ...]
    winner: str | None = None
    record: Mapping[str, Json] = field(default_factory=dict)  # policy, A/A noise, rounds, monitor
    lost: str = ""  # why no race ran, if no contestant is the cause


def wrong_after(name: str, reason: str) -> Eliminated:
    """Returns the elimination of a contestant with wrong outputs after timing, or with an impossible time."""
    return Eliminated(name, reason, Checked("incorrect", reason))


class RaceClient:
    """Verifies and races the contestants of one run through an executor.

    policy: how to measure.
    too_fast: returns the reason why a time (µs) of a contestant is impossible on a workload; None if it is possible.
    first: by workload, the contestant whose outputs are the standard for other contestants' outputs. By default, the
        standard is the task's trusted implementation, or the first correct contestant.
    """

    def __init__(
        self, executor: StepRunner, policy: Policy, seed: int, progress: Progress = silent,
        first: Mapping[str, Contestant] | None = None, too_fast: TooFast = lambda workload, contestant, us: None,
    ) -> None:  # fmt: skip
        self.executor, self.policy, self.seed, self.progress = executor, policy, seed, progress
        self.seconds: dict[str, float] = {"verify": 0.0, "race": 0.0}
        self._first, self._too_fast = first, too_fast
        self.steps = 0  # the number of contestants verified and of races run; remembered results do not count
        self._verified: dict[tuple[str, Source, int], Checked | Eliminated] = {}
        self._raced: dict[tuple[str, tuple[Contestant, ...]], RaceResult] = {}

    def prepare(self, workload: str, seed: int | None = None) -> str:
        """Prepares inputs and references on the worker. Returns the reason if nothing can be compared, else "".

        The worker keeps inputs and references for several workloads. Inputs of a seed other than the run's are removed
        soon.

        seed: the default is the seed of the run.
        Raises TaskError if the task is wrong, and MachineError if the worker fails.
        """
        seed = self.seed if seed is None else seed
        step = ask.PrepareInputs(workload, seed, passing=seed != self.seed)
        outcome = self.executor.run(step, silence=PREPARE_SILENCE)
        if outcome.answer is None:  # the process may have died since the last step
            outcome = self.executor.run(step, silence=PREPARE_SILENCE)
        if (answer := outcome.answer) is None:
            raise MachineError(f"workload {workload} could not be prepared on the GPU: {outcome.reason}")
        if answer.new and self._first is not None:
            self.executor.run(ask.CheckOutputs(self._first[workload].source))
        return answer.unverified

    def is_verified(self, workload: str, contestant: Contestant) -> bool:
        return (workload, contestant.source, self.seed) in self._verified

    def verify(self, workload: str, contestant: Contestant, seed: int | None = None) -> Checked | Eliminated:
        """Compares a contestant's outputs with the references, only once per seed.

        Returns the verdict, or `Eliminated` if the contestant crashed, hung or could not be launched.
        """
        key = (workload, contestant.source, self.seed if seed is None else seed)
        if key not in self._verified:
            with timed(self.seconds, "verify"):
                unverified = self.prepare(workload, seed)
                self._verified[key] = Checked("unverified", unverified) if unverified else self._checked(contestant)
            self.steps += 1
        return self._verified[key]

    def race(
        self, workload: str, contestants: Sequence[Contestant], *, baseline: Contestant | None = None,
        policy: Policy | None = None, needs_baseline: bool = False,
    ) -> RaceResult:  # fmt: skip
        """Races verified contestants. Repeats the race without a contestant that hangs, crashes or is wrong at the end.

        baseline: the contestant that wins ties.
        policy: replaces the run's policy. Without it, equal races are run only once.
        needs_baseline: whether the race ends if the baseline is eliminated.
        """
        key = workload, tuple(contestants)
        if policy is None and key in self._raced:
            return self._raced[key]
        left, out, careful = list(contestants), [], False  # type: list[Contestant], list[Eliminated], bool
        result = RaceResult((), ())
        with timed(self.seconds, "race"):
            while left and (baseline in left or not needs_baseline):
                self.prepare(workload)
                shipped = left.index(baseline) if baseline is not None and baseline in left else None
                sources, costs = tuple(each.source for each in left), tuple(each.cost for each in left)
                step = ask.RaceField(sources, costs, shipped, policy or self.policy, careful)
                outcome = self.executor.run(step, on_progress=self._telling("race", workload, left))
                if (answer := outcome.answer) is not None:
                    wrong = self._wrong(workload, left, answer)
                    if not wrong:
                        result = _result(left, answer)
                        break
                    out += [wrong_after(left[index].name, reason) for index, reason in wrong.items()]
                    left = [each for index, each in enumerate(left) if index not in wrong]
                elif outcome.at is not None:
                    out.append(Eliminated(left.pop(outcome.at).name, outcome.reason, stage="race"))
                    careful = False
                elif careful:  # even one launch at a time did not show which contestant failed
                    out += [Eliminated(each.name, outcome.reason, stage="race") for each in left if each != baseline]
                    result = RaceResult((), (), lost=outcome.reason)
                    break
                else:
                    careful = True
        self.steps += 1
        result = replace(result, eliminated=tuple(out))
        if policy is None:
            self._raced[key] = result
        return result

    def time_pairs(
        self, workload: str, contestants: Sequence[Contestant], copied: int, seed: int | None, budget: Budget,
        captures: int,
    ) -> Outcome[ask.RoundsTimed]:  # fmt: skip
        """Times all contestants in the same rounds. The contestant at index ``copied`` has a second copy, for the A/A
        check.

        seed: seed of the inputs.
        captures: the number of times that all code is captured anew.
        """
        self.prepare(workload, seed)
        policy = replace(self.policy, seed=self.seed if seed is None else seed)
        sources = tuple(each.source for each in contestants)
        step = ask.TimeRounds(sources, budget, policy, copied, captures=captures)
        outcome = self.executor.run(step, on_progress=self._telling("confirm", workload))
        if (answer := outcome.answer) is None:
            return outcome
        if not answer.samples_us[0]:
            return Outcome("FAILED", reason=f"every round was disturbed: {answer.disturbances[-1]}")
        if answer.after_timing is None:
            us = measured_of(answer.samples_us[0]).us
            answer = replace(answer, after_timing=self._too_fast(workload, contestants[0], us))
        return Outcome("PASSED", answer)

    def _wrong(self, workload: str, racing: Sequence[Contestant], answer: ask.FieldRaced) -> dict[int, str]:
        """Returns the reasons why raced contestants are wrong, by the index of the contestant."""
        race, wrong = answer.race, {}
        for index, each in enumerate(racing):
            measured = race.measured(index)
            reason = answer.after_timing if index == race.winner else None
            reason = reason or (self._too_fast(workload, each, measured.us) if measured else None)
            if reason is not None:
                wrong[index] = reason
        return wrong

    def _checked(self, contestant: Contestant) -> Checked | Eliminated:
        outcome = self.executor.run(ask.CheckOutputs(contestant.source))
        if outcome.answer is None:
            return Eliminated(contestant.name, outcome.reason, stage="verify")
        return outcome.answer.checked

    def _telling(self, stage: str, workload: str, racing: Sequence[Contestant] = ()) -> Callable[[Advanced], None]:
        def tell(advanced: Advanced) -> None:
            live = "" if advanced.live is None else f": {advanced.live} left in the race"
            self.progress(stage, advanced.rounds, None, f"{workload}{live}")
            if racing and advanced.leader is not None:
                name = racing[advanced.leader].name
                self.progress(BEST, advanced.rounds, None, f"{workload}: {name} leads the race")

        return tell


def _result(racing: Sequence[Contestant], answer: ask.FieldRaced) -> RaceResult:
    race, fields = answer.race, answer.race.to_json()
    raced = tuple(
        Finisher(each.name, row.state, row.reason, race.measured(row.index))
        for each, row in zip(racing, race.candidates, strict=True)
    )
    winner = None if race.winner is None else racing[race.winner].name
    return RaceResult(raced, (), winner, {**{name: fields[name] for name in KEPT}, "monitor": dict(answer.monitor)})
