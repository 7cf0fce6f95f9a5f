"""The main path of `tilewright optimize`: tries one change at a time, and keeps it only if it is correct and faster.

    choose → apply → compile → screen → verify and race → confirm → decide → commit → record → keep or restore

An iteration tries one entry of the playbook at one site. The values of the entry are compiled in parallel, and screened
by their machine code. The gate (`gates.base.Gate`) verifies the most promising variants, races them against the
incumbent, confirms the fastest on fresh inputs and decides. After the playbook, a proposer may be asked for changes
(`proposing`), which pass the same gate. The ledger records the iteration before the change is kept. So if the
process is killed, at most the running iteration is lost, and the same command continues the run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import MachineError, TilewrightError
from tilewright.executors.base import Executor
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import target_of
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import PROPOSER, Attempt
from tilewright.optimize import usual_causes
from tilewright.optimize.attempting import Variant, no_variant
from tilewright.optimize.bookkeeping import Bookkeeping
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.ending import finish, revert_incorrect_changes
from tilewright.optimize.fields import LOOK_AHEAD, FieldBuilder
from tilewright.optimize.gain_parts import gain_parts
from tilewright.optimize.gates.base import Judged, RacedVariants, Ranking
from tilewright.optimize.optimized import Optimized
from tilewright.optimize.options import OptimizeRequest, Options
from tilewright.optimize.project_tests import ProjectTests
from tilewright.optimize.proposed import ENTRY, Proposer, check_changes, proposal_of
from tilewright.optimize.proposing.asked import Ask, ExternalProposer, LedgerChanged, stopped
from tilewright.optimize.proposing.command import ProposerCommand
from tilewright.optimize.recording import baseline_iteration
from tilewright.optimize.setup import prepare
from tilewright.optimize.time_limit import Deadline, TimeUp
from tilewright.printable import plural
from tilewright.progress import Progress, silent
from tilewright.race.rules import Policy
from tilewright.task.loading import editable_files, task_of
from tilewright.task.task import Task


def optimize(
    task: Task | str, *, arch: str | None = None, workloads: Sequence[str] | str | None = None,
    options: Options | None = None, policy: Policy | None = None, seed: int | None = None,
    ledger: Ledger | None = None, fresh: bool = False, session: Executor | None = None,
    proposers: Sequence[Proposer] = (), ask: Ask | None = None, progress: Progress = silent, **limits: Any,
) -> Optimized:  # fmt: skip
    """Changes the kernel step by step, and keeps each change that is correct and faster.

    task: a task, or ``FILE[:TASK]``.
    arch: an architecture such as ``sm_90``; default: this machine's GPU. For other architectures, times are predicted.
    workloads: one name or several; the default is all workloads.
    policy: how the races measure.
    limits: fields of `Options`, such as ``iterations=5``.
    seed: seed of the inputs; for None, a seed is drawn and recorded.
    ledger: the ledger of all attempts; the default is the ledger in `ledger.file.home`.
    fresh: starts a new run. Otherwise an interrupted run with the same key is continued.
    session: a worker process that is already starting (`executors.local.local`).
    proposers: sources of changes that are asked before the playbook.
    ask: reaches the proposer of ``options.propose``; the default starts its command.
    Raises RequestError for a wrong argument or task, and its subclass Incorrect if the untouched kernel is wrong.
    Raises MachineError if git, a compiler, the GPU or the ledger cannot be used.
    """
    task = task_of(task)
    options, policy = replace(options or Options(), **limits), policy or Policy()
    check_changes(options.changes, editable_files(task))
    if options.propose is not None and ask is None:
        ask = ProposerCommand(options.propose.command)
    target = target_of(arch, detect())
    task = task.on(target.board.arch)
    with ExitStack() as stack:
        if session is not None:
            stack.enter_context(session)
            if not target.measured:
                session.close(wait=False)
                session = None
        ledger = ledger or stack.enter_context(Ledger())
        selected = tuple(task.selected(workloads))
        request = OptimizeRequest(task, target, selected, options, policy, seed, session, progress)
        start = prepare(stack, request, ledger, fresh, proposers, ask)
        loop = Loop(start.setup, start.incumbent, start.iterations)
        if not loop.iterations:
            if tests := loop.tests:
                progress("baseline", 0, None, f"the project's tests: {options.test}")
                tests.check_untouched(loop.incumbent.texts)
            loop.append(baseline_iteration(start.metrics))
        reasons = [loop.run(), revert_incorrect_changes(loop, start.baseline, start.checker)]
        return finish(loop, [reason for reason in reasons if reason], target.note)


@dataclass(frozen=True)
class BuiltProposal:
    """A proposal with the variants to judge, and an `Attempt` for each dropped value.

    ranking: the times of variants that were raced during the build.
    deadline: the end of its iteration.
    late: whether the build reached the deadline.
    """

    proposal: Proposal
    variants: list[Variant]
    attempts: list[Attempt]
    ranking: Ranking
    deadline: Deadline
    late: bool = False


class Loop(Bookkeeping):
    """Runs the iterations of one run."""

    def run(self) -> str:
        """Tries the playbook, and then the proposer if there is one. Returns the reasons why they ended."""
        began = time.monotonic()
        self.write_table()  # if the last process was killed, the table may lack the ledger's last row
        reasons = []
        if not any(iteration.by_proposer for iteration in self.iterations):  # a resumed run goes on where it was
            reason = self._run_playbook(began)
            reasons += [reason] if self.setup.entries or self.setup.proposer is None else []
        if self.setup.proposer is not None:
            reasons.append(self._run_proposer(self.setup.proposer, began))
        return "; ".join(reasons)

    def _run_playbook(self, began: float) -> str:
        """Runs iterations until there is a reason to stop, and returns that reason."""
        iterations = self.setup.options.iterations
        while self.stop is None and len(self.iterations) <= iterations:
            if self._seconds_left(began) < 0:
                return self._time_over
            started = time.perf_counter()
            chosen = self._choose()
            if chosen is None:
                return "every entry was tried"
            self._judge_and_record(chosen, started)
        return self.stop or f"{plural(iterations, 'iteration')} (--iterations)"

    def _run_proposer(self, proposer: ExternalProposer, began: float) -> str:
        """Asks for one proposal after another until there is a reason to stop, and returns that reason."""
        limits = proposer.options
        while (reason := stopped(limits, self.iterations)) is None:
            left = self._seconds_left(began)
            if left < 0:
                return self._time_over
            started = time.perf_counter()
            self.setup.progress(
                "propose", len(self.iterations), None, f"waiting for an answer, at most {limits.seconds:g} s"
            )
            try:
                change = proposer.propose(self.seen(left))
            except LedgerChanged as error:  # a finished run is not resumed
                self.end(str(error), ())
                raise
            if change is not None:
                built = self._build(proposal_of(change, self.incumbent.texts, PROPOSER))
                self._judge_and_record(built, started)
            if proposer.ended:
                return proposer.ended
        return reason

    @property
    def _time_over(self) -> str:
        return f"{self.setup.options.stop_after:.3g} minutes were over (--stop-after)"

    def _seconds_left(self, began: float) -> float:
        return 60 * self.setup.options.stop_after - (time.monotonic() - began)

    def _judge_and_record(self, built: BuiltProposal, started: float) -> None:
        judged = self._judge(built) if built.variants else _nothing_left(built.attempts)
        seconds = time.perf_counter() - started
        self.commit_and_record(built.proposal, built.variants, judged, built.attempts, seconds)

    def _choose(self) -> BuiltProposal | None:
        """Returns the next proposal that has a variant to judge, that comes from a proposer, or that took too long to
        build. None if all were tried."""
        for proposal in self.candidates():
            built = self._build(proposal)
            looked = built.attempts and proposal.entry == LOOK_AHEAD
            if built.variants or built.late or proposal.entry == ENTRY or looked:
                # A proposer is always told the outcome of its change, and the ledger has all pruned pairs.
                return built
            self.count_site(proposal.entry, proposal.place)
            self.ruled_out.append(f"{proposal.name}: {_nothing_left(built.attempts)}")
        return None

    def _build(self, proposal: Proposal) -> BuiltProposal:
        """Applies and compiles the proposal before the deadline of its iteration."""
        options = self.setup.options
        self.setup.progress("build", len(self.iterations), options.iterations, proposal.name)
        deadline, ranking = Deadline(options.minutes * 60), self.setup.gate.ranking(self.incumbent)
        try:
            with deadline.enforced():
                variants, attempts = self._apply_and_compile(proposal, ranking)
            return BuiltProposal(proposal, variants, attempts, ranking, deadline)
        except TimeUp:
            reason = f"did not compile within {options.minutes:g} min (--minutes)"
            failed = [no_variant(proposal.place, "failed", reason)]
            return BuiltProposal(proposal, [], failed, ranking, deadline, late=True)

    def _apply_and_compile(self, proposal: Proposal, ranking: Ranking) -> tuple[list[Variant], list[Attempt]]:
        """Returns the variants to judge, and an `Attempt` with the reason for every dropped value."""
        self.built += 1  # part of the name: one iteration may build two proposals of one entry
        label = f"{len(self.iterations)}-{proposal.entry}-{self.built}"
        fields = FieldBuilder(
            self.incumbent, self.setup.entries, self.setup.addable, self.setup.builder.build, self.facts_of, ranking
        )
        variants, attempts = fields.field(proposal, label)
        return [replace(variant, kind=proposal.kind(variant.value)) for variant in variants], attempts

    def _judge(self, built: BuiltProposal) -> Judged | str:
        """Verifies, races and confirms the variants, and decides. If the iteration crashed, returns the reason."""
        gate, options, variants = self.setup.gate, self.setup.options, built.variants
        note = f"{built.proposal.name}: {plural(len(variants), 'variant')}"
        self.setup.progress("judge", len(self.iterations), options.iterations, note)
        try:
            with built.deadline.enforced():
                raced = built.ranking.race(variants)
                confirmed = gate.confirm(raced, self.incumbent)
                judged = confirmed if isinstance(confirmed, Judged) else gate.decide(confirmed)
                judged = self.setup.elsewhere.judged(judged, self.incumbent)
                judged = _with_gain_parts(self._tested(judged), raced, built.attempts)
            return self._explained(judged)
        except TimeUp:
            return f"longer than {options.minutes:g} min (--minutes)"
        except MachineError:
            raise
        except TilewrightError as error:
            return str(error)

    @property
    def tests(self) -> ProjectTests | None:
        options = self.setup.options
        return ProjectTests(options.test, options.minutes * 60) if options.test else None

    def _tested(self, judged: Judged) -> Judged:
        """Runs the project's own tests on a version that would be kept. A version that fails them is not kept."""
        if not judged.keep or self.tests is None:
            return judged
        self.setup.progress("test", len(self.iterations), self.setup.options.iterations, self.setup.options.test)
        failure = self.tests.failure(judged.best.texts)
        if failure is None:
            return replace(judged, reason=f"{judged.reason}; the project's tests pass")
        return replace(judged, keep=False, correctness="FAIL", reason=failure)

    def _explained(self, judged: Judged) -> Judged:
        """Adds the usual causes that fit the change to the reason of a failed check."""
        fitting = usual_causes.fitting(self.incumbent.texts, judged.best.texts) if judged.correctness == "FAIL" else ""
        return replace(judged, reason=f"{judged.reason}; usual causes that fit: {fitting}") if fitting else judged


def _with_gain_parts(judged: Judged, raced: RacedVariants, dropped: Sequence[Attempt]) -> Judged:
    """Adds how much of a kept gain comes from the structure, and how much from hints that were added to it."""
    parts = gain_parts(judged.best, raced.ranked, (*judged.attempts, *dropped)) if judged.keep else None
    return replace(judged, gain_parts=parts, reason=f"{judged.reason}; {parts}") if parts else judged


def _nothing_left(attempts: Sequence[Attempt]) -> str:
    """Returns why a proposal has no variant: the first three different reasons of its attempts."""
    reasons = list(dict.fromkeys(attempt.reason for attempt in attempts))
    return "; ".join(reasons[:3]) if reasons else "no value to try"
