"""Verifies, races and confirms versions of a kernel in the worker process.

The worker opens the baseline task. All versions are checked with the inputs, references and tolerances of the baseline.
A version supplies only its launch function and its shipped configuration.

`Arena.race` quickly ranks the variants of one iteration, and never decides which is kept. `confirm` measures the
fastest variant in pairs with incumbent and baseline, on inputs that this run has not used. Each look (`Arena.confirm`)
adds samples, until `decide` reaches a decision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from tilewright.executors import executor_of
from tilewright.executors.base import Executor
from tilewright.optimize.decide import LOOKS, Decision, Paired, decide
from tilewright.progress import Progress, silent
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.records import Checked, Json
from tilewright.task.task import Task
from tilewright.worker.client import Contestant, Eliminated, RaceClient, RaceResult, TooFast, wrong_after

RACE_ROUNDS, RACE_SECONDS = 200, 2.0
"""Most rounds and seconds of one race. A small error of the ranking is harmless, because the confirmation measures
again."""
CONFIRM_SECONDS = 3.0
"""Most wall seconds of one confirmation on one workload: 400 rounds of a kernel that takes 1.7 ms. A shorter kernel
first reaches the rounds of `decide.LOOKS`."""
SECONDS = (CONFIRM_SECONDS / 6, CONFIRM_SECONDS / 3, CONFIRM_SECONDS / 2)
"""Most wall seconds of each look (an interim analysis of the samples). The first look is short, because most changes
are clearly faster or slower.
"""
FEWEST_ROUNDS = 2 * LOOKS[0][0]
"""Fewest rounds of the first look, however long the kernel takes: two for each capture. This look then has enough
captures for a decision over 30 workloads."""


@dataclass(frozen=True)
class PlannedLook:
    """The captures of one look, and the limits of their rounds."""

    captures: int
    budget: Budget


PLAN = tuple(
    PlannedLook(captures, Budget(captures * rounds, seconds, 0 if place else FEWEST_ROUNDS))
    for place, ((captures, rounds), seconds) in enumerate(zip(LOOKS, SECONDS, strict=True))
)
"""The looks of a confirmation."""


@dataclass(frozen=True)
class Confirmation(Paired):
    """The paired times of one workload, and the conditions under which they were measured."""

    checked: Checked
    """The check of the candidate on this confirmation's inputs, before and after timing."""
    seed: int
    monitors: tuple[Mapping[str, Json], ...] = ()
    """For each look, the record of clocks and other processes."""
    disturbances: tuple[str, ...] = ()

    def plus(self, more: Confirmation) -> Confirmation:
        """Returns these samples followed by the samples of the next look, ``more``."""
        grow = ("candidate_us", "incumbent_us", "copy_us", "baseline_us", "captures", "monitors", "disturbances")
        both: dict[str, Any] = {name: (*getattr(self, name), *getattr(more, name)) for name in grow}
        return replace(more, **both)


@dataclass(frozen=True)
class Entrant:
    """A version of the kernel that the worker can launch.

    files: maps the absolute path of the user's file to the absolute path of this version's copy.
    contestants: the launch to time for each workload, by name.
    """

    name: str
    files: Mapping[str, str]
    contestants: Mapping[str, Contestant]


class Arena:
    """The worker of one optimisation run. It ends with the ``with`` block.

    where: the task, as ``FILE`` or ``FILE:TASK``.
    policy: how to measure (L2, graph or eager).
    session: a worker process that is already starting; None starts a new one.
    is_open: whether the session has opened the task with the baseline's files already.
    """

    def __init__(
        self, task: Task, where: str, baseline: Entrant, policy: Policy, seed: int,
        progress: Progress = silent, session: Executor | None = None, too_fast: TooFast = lambda *_: None,
        is_open: bool = False,
    ) -> None:  # fmt: skip
        self.seed, self.policy, self.progress = seed, policy, progress
        self.session = session or executor_of("local")()
        if not is_open:
            self.session.open(where, baseline.files)
        first = baseline.contestants if task.trusted is None else None
        self.client = RaceClient(self.session, policy, seed, progress, first, too_fast)

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *error: object) -> None:
        self.session.__exit__(*error)

    @contextmanager
    def preparing(self, workloads: Sequence[str]) -> Iterator[None]:
        """Draws the inputs and computes the references in the worker, while the ``with`` block runs.

        Only for the block: a worker answers one request after the other. The next request reports an error, again.
        """

        def prepare() -> None:
            with suppress(Exception):
                for workload in workloads:
                    self.client.prepare(workload)

        thread = threading.Thread(target=prepare, daemon=True)
        thread.start()
        yield
        thread.join()

    def verify(self, version: Entrant, workload: str, seed: int | None = None) -> Checked | Eliminated:
        """Runs a version once and compares it with the references. Returns `Eliminated` if the version did not run."""
        self.progress("verify", 0, None, f"{workload}: {version.name}")
        return self.client.verify(workload, version.contestants[workload], seed)

    def race(self, workload: str, versions: Sequence[Entrant]) -> RaceResult:
        """Races correct ``versions``. The first version is the incumbent; if it fails, no race takes place."""
        policy = replace(self.policy, max_rounds=RACE_ROUNDS, seconds=RACE_SECONDS, seed=self.seed)
        contestants = [version.contestants[workload] for version in versions]
        return self.client.race(workload, contestants, baseline=contestants[0], policy=policy, needs_baseline=True)

    def confirm(
        self, workload: str, candidate: Entrant, incumbent: Entrant, baseline: Entrant, seed: int, look: PlannedLook
    ) -> Confirmation | Eliminated:
        """Takes one look: verifies the candidate, and measures paired samples on inputs drawn from ``seed``.

        For a decision, no earlier request may have used the seed. If a launch hangs, the candidate counts as the cause,
        because incumbent and baseline have run such rounds before.
        """
        checked = self.verify(candidate, workload, seed)
        if isinstance(checked, Eliminated):
            return checked
        if not checked.right:
            return Eliminated(candidate.name, f"on fresh inputs: {checked.reason}", checked)
        versions = [candidate, incumbent, *([] if baseline.files == incumbent.files else [baseline])]
        contestants = [version.contestants[workload] for version in versions]
        outcome = self.client.time_pairs(workload, contestants, 1, seed, look.budget, look.captures)
        if (timed := outcome.answer) is None:
            return Eliminated(versions[outcome.at or 0].name, f"confirmation: {outcome.reason}")
        if timed.after_timing is not None:
            return wrong_after(candidate.name, timed.after_timing)
        *samples, copy = timed.samples_us
        return Confirmation(
            samples[0], samples[1], copy, samples[-1], timed.captures, checked, seed, (timed.monitor,),
            timed.disturbances,
        )  # fmt: skip


@dataclass(frozen=True)
class Confirmations:
    """The decision on a candidate, and its samples."""

    decision: Decision
    by_workload: Mapping[str, Confirmation]


def confirm(
    arena: Arena, workloads: Sequence[str], candidate: Entrant, incumbent: Entrant, baseline: Entrant, seed: int
) -> Confirmations | Eliminated:
    """Measures ``candidate`` against incumbent and baseline, until a decision is made or all looks are taken.

    Returns `Eliminated` if a version was wrong or broke the process. ``seed``: of inputs that this run has not used.
    """
    samples: dict[str, Confirmation] = {}
    for look in PLAN:
        for name in workloads:
            found = arena.confirm(name, candidate, incumbent, baseline, seed, look)
            if isinstance(found, Eliminated):
                return found
            samples[name] = samples[name].plus(found) if name in samples else found
        decision = decide(samples)
        if decision.decided:
            break
    return Confirmations(decision, samples)
