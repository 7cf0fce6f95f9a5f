"""Versions of a kernel through the race client: verified, raced, confirmed, timed.

The worker opens the baseline, whose inputs, references and tolerances judge every version; a version supplies
its launch and its shipped configuration.

`Arena.race` chooses among the variants of one iteration and is quick; nothing is kept because of it.
`confirm` pairs the chosen one with incumbent and baseline on inputs that nobody has seen, look by look
(`Arena.confirm`), until `decide` has enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.executors import executor_of
from tilewright.executors.base import Executor
from tilewright.optimize.decide import AA_CONFIDENCE, ROUNDS, Decision, Paired, decide
from tilewright.optimize.versions.version import KernelVersion
from tilewright.progress import Progress, silent
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.race.stats import noise_of
from tilewright.records import Checked, Json, MeasuredTime
from tilewright.task.task import Task
from tilewright.worker.client import Contestant, Eliminated, RaceClient, RaceResult, measured_of, wrong_after
from tilewright.worker.messages import Edited, Lost

RACE_ROUNDS, RACE_SECONDS = 200, 2.0
"""Of the choice among variants, which the confirmation checks on fresh inputs: it may be wrong by a little."""
CONFIRM_SECONDS = 3.0
"""Wall time of the rounds of one confirmation on one workload, all looks together: 400 rounds of a kernel of
1.7 ms. Short kernels end by `decide.ROUNDS` before."""
SECONDS = (CONFIRM_SECONDS / 6, CONFIRM_SECONDS / 3, CONFIRM_SECONDS / 2)
"""Of the looks: the first is short, because most changes are clear."""
FEWEST_ROUNDS = 40
"""Of the first look, however long a kernel takes: what the bounds of a decision over six workloads need thrice."""
TIME_BUDGET = Budget(100, 1.0, 20)
"""Of `Arena.time`."""


@dataclass(frozen=True)
class Confirmation:
    """One workload: paired µs of candidate, incumbent, a second copy of the incumbent, and baseline."""

    candidate_us: tuple[float, ...] = field(repr=False)
    incumbent_us: tuple[float, ...] = field(repr=False)
    copy_us: tuple[float, ...] = field(repr=False)
    baseline_us: tuple[float, ...] = field(repr=False)
    checked: Checked
    """The candidate's, on this confirmation's inputs, before and after it was timed."""
    seed: int
    monitors: tuple[Mapping[str, Json], ...] = ()
    """Clocks and other processes, look by look."""
    disturbances: tuple[str, ...] = ()

    def plus(self, more: Confirmation) -> Confirmation:
        """With the rounds of the next look."""
        grow = ("candidate_us", "incumbent_us", "copy_us", "baseline_us", "monitors", "disturbances")
        return replace(more, **{name: getattr(self, name) + getattr(more, name) for name in grow})

    @property
    def paired(self) -> Paired:
        """What `decide` asks for."""
        noise = noise_of(self.incumbent_us, self.copy_us, confidence=AA_CONFIDENCE)
        return Paired(self.candidate_us, self.incumbent_us, self.baseline_us, noise)


class Arena:
    """The race of one optimisation run. Use it as a context.

    task, where: the task, and where `loading.load_task` finds it. policy: how to measure (L2, graph or eager).
    session: a worker process that is starting already and has no task yet; the arena ends it.
    """

    def __init__(
        self, task: Task, where: str, baseline: KernelVersion, policy: Policy, seed: int,
        progress: Progress = silent, session: Executor | None = None,
    ) -> None:  # fmt: skip
        self.seed, self.policy, self.progress = seed, policy, progress
        self.session = session or executor_of("local")()
        self.session.open(where, baseline.files)
        self.client = RaceClient(task, self.session, policy, seed, progress, contestant_of(baseline))

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *what: object) -> None:
        self.session.__exit__(*what)

    def verify(self, version: KernelVersion, workload: str, seed: int | None = None) -> Checked | Eliminated:
        """Runs a version against the references, once; `Eliminated` where it did not even run."""
        self.progress("verify", 0, None, f"{workload}: {version.name}")
        return self.client.verify(workload, contestant_of(version), seed)

    def race(self, workload: str, versions: Sequence[KernelVersion]) -> RaceResult:
        """Which of verified ``versions`` is fastest; the first is the incumbent, without which there is no race."""
        policy = replace(self.policy, max_rounds=RACE_ROUNDS, seconds=RACE_SECONDS, seed=self.seed)
        contestants = [contestant_of(version) for version in versions]
        return self.client.race(workload, contestants, baseline=contestants[0], policy=policy, needs_baseline=True)

    def confirm(
        self, workload: str, candidate: KernelVersion, incumbent: KernelVersion, baseline: KernelVersion, seed: int,
        budget: Budget,
    ) -> Confirmation | Eliminated:  # fmt: skip
        """Paired samples of one look, on inputs of ``seed``: what decides needs one that no earlier request used.

        A hang in the rounds is blamed on the candidate: incumbent and baseline went through rounds before.
        """
        checked = self.verify(candidate, workload, seed)
        if isinstance(checked, Eliminated):
            return checked
        if checked.verdict != "correct":
            return Eliminated(candidate.name, f"on fresh inputs: {checked.reason}", checked)
        versions = [candidate, incumbent, *([] if baseline.files == incumbent.files else [baseline])]
        timed = self.client.time_pairs(workload, [contestant_of(each) for each in versions], 1, seed, budget)
        if isinstance(timed, Lost):
            return Eliminated(versions[timed.at or 0].name, f"confirmation: {timed.reason}")
        if timed.after_timing is not None:
            return wrong_after(candidate.name, timed.after_timing)
        *samples, copy = timed.samples_us
        return Confirmation(
            samples[0], samples[1], copy, samples[-1], checked, seed, (timed.monitor,), timed.disturbances
        )

    def time(self, workload: str, version: KernelVersion) -> MeasuredTime | Eliminated:
        """A version by itself, on the run's inputs."""
        timed = self.client.time_pairs(workload, [contestant_of(version)], 0, None, TIME_BUDGET)
        if isinstance(timed, Lost):
            return Eliminated(version.name, f"timing: {timed.reason}")
        return measured_of(timed.samples_us[0])


def contestant_of(version: KernelVersion) -> Contestant:
    """A version as the race client takes it."""
    return Contestant(version.name, Edited.of(version.files))


@dataclass(frozen=True)
class Confirmed:
    decision: Decision
    by_workload: Mapping[str, Confirmation]


def confirm(
    arena: Arena, workloads: Sequence[str], candidate: KernelVersion, incumbent: KernelVersion, baseline: KernelVersion,
    seed: int,
) -> Confirmed | Eliminated:  # fmt: skip
    """Decides on ``candidate`` against incumbent and baseline.

    seed: of inputs that this run has not used.
    `Eliminated` where a version was wrong or broke the process on the way.
    """
    seen: dict[str, Confirmation] = {}
    done = 0
    for rounds, seconds in zip(ROUNDS, SECONDS, strict=True):
        budget = Budget(rounds - done, seconds, 0 if done else FEWEST_ROUNDS)
        for name in workloads:
            look = arena.confirm(name, candidate, incumbent, baseline, seed, budget)
            if isinstance(look, Eliminated):
                return look
            seen[name] = seen[name].plus(look) if name in seen else look
        paired = {name: confirmation.paired for name, confirmation in seen.items()}
        decision = decide(paired, last=rounds == ROUNDS[-1])
        if decision.decided:
            break
        done = rounds
    return Confirmed(decision, seen)
