"""The main path of `tilewright optimize`: tries one change at a time, and keeps it only if it is correct and faster.

    choose → apply → compile → screen → verify → race → confirm → decide → commit → record → keep or restore

An iteration tries one entry of the playbook at one site. The values of the entry are compiled in parallel, and screened
by their machine code. The gate (`gates.base.Gate`) verifies the remaining variants, races them against the incumbent,
confirms the fastest on fresh inputs and decides. The ledger records the iteration before the change is kept. So if the
process is killed, at most the running iteration is lost, and the same command continues the run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tilewright.errors import MachineError, TilewrightError
from tilewright.executors.base import Executor
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import target_of
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Attempt
from tilewright.optimize.attempting import Variant, no_variant
from tilewright.optimize.bookkeeping import Bookkeeping
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.ending import finish, revert_incorrect_changes
from tilewright.optimize.fields import LOOK_AHEAD, FieldBuilder
from tilewright.optimize.gates.base import Judged
from tilewright.optimize.optimized import Optimized
from tilewright.optimize.options import OptimizeRequest, Options
from tilewright.optimize.proposed import ENTRY, Proposer, check_changes
from tilewright.optimize.recording import baseline_iteration
from tilewright.optimize.setup import prepare
from tilewright.optimize.time_limit import Deadline, TimeUp
from tilewright.progress import Progress, silent
from tilewright.race.rules import Policy
from tilewright.task.loading import editable_files, task_of
from tilewright.task.task import Task


def optimize(
    task: Task | str, *, arch: str | None = None, workloads: Sequence[str] | str | None = None,
    options: Options | None = None, policy: Policy | None = None, seed: int | None = None,
    ledger: Ledger | None = None, fresh: bool = False, session: Executor | None = None,
    proposers: Sequence[Proposer] = (), progress: Progress = silent, **limits: Any,
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
    Raises RequestError for a wrong argument or task, and its subclass Incorrect if the untouched kernel is wrong.
    Raises MachineError if git, a compiler, the GPU or the ledger cannot be used.
    """
    task = task_of(task)
    options, policy = replace(options or Options(), **limits), policy or Policy()
    check_changes(options.changes, editable_files(task))
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
        start = prepare(stack, request, ledger, fresh, proposers)
        loop = Loop(start.setup, start.incumbent, start.iterations)
        if not loop.iterations:
            loop.append(baseline_iteration(start.metrics))
        reasons = [loop.run(), revert_incorrect_changes(loop, start.baseline, start.checker)]
        return finish(loop, [reason for reason in reasons if reason], target.note)


class Loop(Bookkeeping):
    """Runs the iterations of one run."""

    def run(self) -> str:
        """Runs iterations until there is a reason to stop, and returns that reason."""
        iterations, minutes = self.setup.options.iterations, self.setup.options.stop_after
        began = time.monotonic()
        self.write_table()  # if the last process was killed, the table may lack the ledger's last row
        while self.stop is None and len(self.iterations) <= iterations:
            if time.monotonic() - began > 60 * minutes:
                return f"{minutes:.3g} minutes were over (--stop-after)"
            started = time.perf_counter()
            chosen = self._choose()
            if chosen is None:
                return "every entry was tried"
            proposal, variants, attempts, deadline = chosen
            judged = self._judge(proposal, variants, deadline) if variants else _nothing_left(attempts)
            self.commit_and_record(proposal, variants, judged, attempts, time.perf_counter() - started)
        return self.stop or f"{iterations} iteration{'s' if iterations != 1 else ''} (--iterations)"

    def _choose(self) -> tuple[Proposal, list[Variant], list[Attempt], Deadline] | None:
        """Returns the next proposal that has a variant to judge, that comes from a proposer, or that took too long to
        build. Also returns the deadline of its iteration. None if all were tried."""
        options = self.setup.options
        for proposal in self.candidates():
            self.setup.progress("build", len(self.iterations), options.iterations, proposal.name)
            deadline, late = Deadline(options.minutes * 60), False
            try:
                with deadline.enforced():
                    variants, attempts = self._apply_and_compile(proposal)
            except TimeUp:
                late, reason = True, f"did not compile within {options.minutes:g} min (--minutes)"
                variants, attempts = [], [no_variant(proposal.place, "failed", reason)]
            if variants or late or proposal.entry == ENTRY or (attempts and proposal.entry == LOOK_AHEAD):
                # A proposer is always told the outcome of its change, and the ledger has all pruned pairs.
                return proposal, variants, attempts, deadline
            self.count_site(proposal.entry, proposal.place)
            self.ruled_out.append(f"{proposal.name}: {_nothing_left(attempts)}")
        return None

    def _apply_and_compile(self, proposal: Proposal) -> tuple[list[Variant], list[Attempt]]:
        """Returns the variants to judge, and an `Attempt` with the reason for every dropped value."""
        self.built += 1  # part of the name: one iteration may build two proposals of one entry
        label = f"{len(self.iterations)}-{proposal.entry}-{self.built}"
        fields = FieldBuilder(
            self.incumbent, self.setup.entries, self.setup.addable, self.setup.builder.build, self.facts_of
        )
        variants, attempts = fields.field(proposal, label)
        return [replace(variant, kind=proposal.kind(variant.value)) for variant in variants], attempts

    def _judge(self, proposal: Proposal, variants: list[Variant], deadline: Deadline) -> Judged | str:
        """Verifies, races and confirms the variants, and decides. If the iteration crashed, returns the reason."""
        gate, options = self.setup.gate, self.setup.options
        note = f"{proposal.name}: {len(variants)} variant{'s' if len(variants) != 1 else ''}"
        self.setup.progress("judge", len(self.iterations), options.iterations, note)
        try:
            with deadline.enforced():
                verified = gate.verify(variants)
                raced = gate.race(verified, self.incumbent)
                confirmed = gate.confirm(raced, self.incumbent)
                judged = confirmed if isinstance(confirmed, Judged) else gate.decide(confirmed)
                judged = self.setup.elsewhere.judged(judged, self.incumbent)
            return judged
        except TimeUp:
            return f"longer than {options.minutes:g} min (--minutes)"
        except MachineError:
            raise
        except TilewrightError as error:
            return str(error)


def _nothing_left(attempts: Sequence[Attempt]) -> str:
    """Returns why a proposal has no variant: the first three different reasons of its attempts."""
    reasons = list(dict.fromkeys(attempt.reason for attempt in attempts))
    return "; ".join(reasons[:3]) if reasons else "no value to try"
