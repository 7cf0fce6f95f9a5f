"""The parent's side of verifying and racing: one client for configurations and for versions of the code.

Whatever a contestant does to the worker process (it hangs, crashes, is wrong), it leaves the field with a reason and
the run goes on: the next step starts another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.errors import MachineError
from tilewright.executors.base import Executor
from tilewright.progress import BEST, Progress, silent, timed
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.race.stats import median_interval
from tilewright.records import Checked, Json, MachineCode, MeasuredTime
from tilewright.task.task import Task
from tilewright.worker import messages as ask
from tilewright.worker.messages import Advanced, Lost, Source

PREPARE_SILENCE = 180.0
"""Seconds for drawing inputs and computing the float64 references of one workload."""
KEPT = ("policy", "noise", "why", "stop", "settled", "rounds", "disturbed", "disturbances", "seconds")
"""What of a race's outcome goes into the record beside the contestants."""


@dataclass(frozen=True)
class Contestant:
    """Who is verified and timed."""

    name: str
    source: Source
    cost: tuple[int, ...] = ()
    """What it occupies: among the tied the smaller is preferred."""


@dataclass(frozen=True)
class Eliminated:
    """A contestant that did not get through: it crashed, hung, could not be launched, or was wrong."""

    name: str
    reason: str
    checked: Checked | None = None
    """The verdict, where its outputs are what is wrong."""


@dataclass(frozen=True)
class Finisher:
    """What a race says of a contestant that went through it."""

    name: str
    state: str
    """Of `protocol.Raced`: leader, tied, dropped, undecided, failed."""
    reason: str
    measured: MeasuredTime | None


@dataclass(frozen=True)
class RaceResult:
    """A race on one workload; ``raced`` is empty if none went through."""

    raced: tuple[Finisher, ...]
    eliminated: tuple[Eliminated, ...]
    winner: str | None = None
    record: Mapping[str, Json] = field(default_factory=dict)
    """Policy, A/A noise, rounds, monitor."""
    lost: str = ""
    """Why nothing could be raced, where that is no contestant's fault."""


def wrong_after(name: str, reason: str) -> Eliminated:
    """The outputs of ``name`` were wrong after it had been timed."""
    return Eliminated(name, reason, Checked("incorrect", reason))


def cost_of(code: MachineCode | None) -> tuple[int, ...]:
    """What a configuration occupies; among the tied the smaller is preferred: CTAs in a cluster, then
    registers of a CTA, shared memory, instructions."""
    if code is None:
        return (1 << 30,)
    return (code.cluster, code.registers * code.threads, code.shared_bytes, code.instructions)


def measured_of(samples: Sequence[float]) -> MeasuredTime:
    """Median and its 95 % distribution-free interval, in µs."""
    interval = median_interval(samples, 0.95)
    return MeasuredTime(interval.centre, (interval.low, interval.high), tuple(samples))


class RaceClient:
    """Verifies and races the contestants of one run through an executor.

    policy: how to measure (L2, graph or eager). first: whose outputs the others' are compared with where the task
    has no trusted implementation; without it those of the first that is correct.
    """

    def __init__(
        self, task: Task, executor: Executor, policy: Policy, seed: int, progress: Progress = silent,
        first: Contestant | None = None,
    ) -> None:  # fmt: skip
        self.task, self.executor, self.policy, self.seed, self.progress = task, executor, policy, seed, progress
        self.seconds: dict[str, float] = {"verify": 0.0, "race": 0.0}
        self._first = first
        self.steps = 0
        """Contestants verified and races run; what was remembered does not count."""
        self._verified: dict[tuple[str, Source, int], Checked | Eliminated] = {}
        self._raced: dict[tuple[str, tuple[Contestant, ...]], RaceResult] = {}

    def prepare(self, workload: str, seed: int | None = None) -> None:
        """Inputs and references on the worker, which keeps those of several workloads. ``seed``: one that
        will not come back, whose inputs are not kept long; or the run's, as without one.

        Raises TaskError for what is wrong with the task, MachineError where the worker cannot.
        """
        seed = self.seed if seed is None else seed
        step = ask.PrepareInputs(workload, seed, passing=seed != self.seed)
        answer = self.executor.run(step, silence=PREPARE_SILENCE)
        if isinstance(answer, Lost):  # perhaps the process died since the last step
            answer = self.executor.run(step, silence=PREPARE_SILENCE)
        if isinstance(answer, Lost):
            raise MachineError(f"workload {workload} could not be prepared on the GPU: {answer.reason}")
        if answer.new and self._first is not None and self.task.trusted is None:
            self.executor.run(ask.CheckOutputs(self._first.source))

    def is_verified(self, workload: str, contestant: Contestant) -> bool:
        return (workload, contestant.source, self.seed) in self._verified

    def verify(self, workload: str, contestant: Contestant, seed: int | None = None) -> Checked | Eliminated:
        """Runs a contestant against the references, once; `Eliminated` where it did not even run."""
        key = (workload, contestant.source, self.seed if seed is None else seed)
        if key not in self._verified:
            with timed(self.seconds, "verify"):
                self.prepare(workload, seed)
                answer = self.executor.run(ask.CheckOutputs(contestant.source))
            self.steps += 1
            if isinstance(answer, Lost):
                self._verified[key] = Eliminated(contestant.name, f"verify: {answer.reason}")
            else:
                self._verified[key] = answer.checked
        return self._verified[key]

    def race(
        self, workload: str, contestants: Sequence[Contestant], *, baseline: Contestant | None = None,
        policy: Policy | None = None, needs_baseline: bool = False,
    ) -> RaceResult:  # fmt: skip
        """Which of the verified contestants is fastest.

        Races until one race went through; a contestant that hangs, crashes or ends wrong leaves the field.

        baseline: who wins ties. policy: in place of the run's own, under which equal races are run once.
        needs_baseline: there is no race without it.
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
                answer = self.executor.run(step, on_progress=self._telling("race", workload, left))
                if isinstance(answer, ask.FieldRaced) and answer.after_timing is None:
                    result = _result(left, answer)
                    break
                if isinstance(answer, ask.FieldRaced):
                    assert answer.race.winner is not None, "only a winner is checked after timing"
                    out.append(wrong_after(left.pop(answer.race.winner).name, str(answer.after_timing)))
                elif answer.at is not None:
                    out.append(Eliminated(left.pop(answer.at).name, f"race: {answer.reason}"))
                    careful = False
                elif careful:  # not even one at a time shows who it is
                    out += [Eliminated(each.name, f"race: {answer.reason}") for each in left if each != baseline]
                    result = RaceResult((), (), lost=answer.reason)
                    break
                else:
                    careful = True
        self.steps += 1
        result = replace(result, eliminated=tuple(out))
        if policy is None:
            self._raced[key] = result
        return result

    def time_pairs(
        self, workload: str, contestants: Sequence[Contestant], copied: int, seed: int | None, budget: Budget
    ) -> ask.RoundsTimed | Lost:
        """Paired samples of all and of a second copy of one, on inputs of ``seed``; none is dropped."""
        self.prepare(workload, seed)
        policy = replace(self.policy, seed=self.seed if seed is None else seed)
        step = ask.TimeRounds(tuple(each.source for each in contestants), budget, policy, copied)
        answer = self.executor.run(step, on_progress=self._telling("confirm", workload))
        if not isinstance(answer, Lost) and not answer.samples_us[0]:
            return Lost(f"every round was disturbed: {answer.disturbances[-1]}")
        return answer

    def _telling(
        self, stage: str, workload: str, racing: Sequence[Contestant] = ()
    ) -> Callable[[Advanced], None]:  # fmt: skip
        names = [each.name for each in racing]

        def tell(advanced: Advanced) -> None:
            live = "" if advanced.live is None else f": {advanced.live} left in the race"
            self.progress(stage, advanced.rounds, None, f"{workload}{live}")
            if names and advanced.leader is not None:
                self.progress(BEST, advanced.rounds, None, f"{workload}: {names[advanced.leader]} leads the race")

        return tell


def _result(left: Sequence[Contestant], answer: ask.FieldRaced) -> RaceResult:
    race, said = answer.race, answer.race.to_json()
    raced = tuple(
        Finisher(each.name, row.state, row.reason, race.measured(row.index))
        for each, row in zip(left, race.candidates, strict=True)
    )
    winner = None if race.winner is None else left[race.winner].name
    record = {**{name: said[name] for name in KEPT}, "monitor": dict(answer.monitor)}
    return RaceResult(raced, (), winner, record)
