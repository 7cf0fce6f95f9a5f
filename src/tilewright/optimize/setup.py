"""Prepares a run of `optimize`, new or interrupted: makes builder, gate, workspace and ledger."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tilewright.candidate.client import Candidates
from tilewright.candidate.sandbox import unprotected
from tilewright.errors import Incorrect
from tilewright.executors import executor_of
from tilewright.executors.base import Executor
from tilewright.hardware.machine import machine_of
from tilewright.inspect.speed_limit import SpeedLimit
from tilewright.inspect.work import bound_of
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration, Metrics, still_kept
from tilewright.optimize.attempting import Builder, Variant
from tilewright.optimize.bookkeeping import Setup
from tilewright.optimize.elsewhere import OtherArchitectures
from tilewright.optimize.fields import addable
from tilewright.optimize.gates.arena import Arena
from tilewright.optimize.gates.base import Gate, VariantChecker
from tilewright.optimize.gates.measured import MeasuredGate
from tilewright.optimize.gates.predicted import PredictedGate
from tilewright.optimize.options import OptimizeRequest
from tilewright.optimize.proposed import FromFiles, Proposer
from tilewright.optimize.proposing.asked import Ask, ExternalProposer
from tilewright.optimize.recording import record_of
from tilewright.optimize.versions import version as versions
from tilewright.optimize.versions.leftovers import prune_killed
from tilewright.optimize.versions.workspace import Workspace
from tilewright.playbook import catalogue
from tilewright.playbook.base import by_present_name, present_name
from tilewright.records import Bound
from tilewright.task.loading import where_is

BASELINE = "baseline"
"""The name of the version with the untouched code."""


@dataclass(frozen=True)
class Start:
    """The state at the start of the loop. ``metrics``: of the baseline. ``iterations``: of an interrupted run."""

    setup: Setup
    baseline: Variant
    metrics: tuple[Metrics, ...]
    incumbent: Variant
    iterations: list[Iteration]
    checker: VariantChecker


def prepare(
    stack: ExitStack, request: OptimizeRequest, ledger: Ledger, fresh: bool, proposers: Sequence[Proposer],
    ask: Ask | None = None,
) -> Start:  # fmt: skip
    """Prepares a new run, or continues the interrupted run with the same key.

    fresh: always starts a new run.
    stack: closes the resources that this function opens.
    ask: reaches the proposer of the options, if they have one.
    Raises Incorrect if the untouched code is not correct.
    """
    task, target, entries = request.task, request.target, request.entries
    machine = machine_of(target)
    key = request.key(machine.versions)
    interrupted = None if fresh else ledger.resume(key)
    name, seed = (interrupted[0].run, interrupted[0].seed) if interrupted else (ledger.new_name(), request.seed)
    seed = seed if seed is not None else secrets.randbits(31)
    if interrupted:
        done = max(len(interrupted[1]) - 1, 0)  # the first iteration is the baseline
        ledger.note(f"resuming run {name}: {done} of {request.options.iterations} iterations are done")
    request.progress("baseline", 0, None, f"{task.name}: the untouched code")
    if missing := unprotected():
        ledger.note(f"edited code runs here without protection from {' and '.join(missing)}")
    # The processes of the versions, of the worker and of the trusted implementation import packages at the same time,
    # while this process counts the work.
    candidates = stack.enter_context(Candidates(request.texts))
    builder = Builder(
        candidates, task, where_is(task), target.board, request.workloads, ledger.folder(name) / "versions",
        request.options.jobs, request.options.seconds, partial(ledger.loading, name), ledger.suspects(name),
    )  # fmt: skip
    request = replace(request, seed=seed, session=_opened(stack, request, builder))
    checker = stack.enter_context(closing(VariantChecker(task, target.board, request.workloads, seed)))
    bounds = {workload.name: bound_of(task, workload, target.board) for workload in request.workloads}
    baseline = builder.build_one(BASELINE, request.texts)
    gate = _gate(stack, request, baseline, bounds, checker, len(interrupted[1]) if interrupted else 0)
    metrics = gate.baseline(baseline)
    if isinstance(metrics, str):
        raise Incorrect(f"the untouched code of task '{task.name}' is not correct: {metrics}")
    prune_killed(task.file.parent if task.file else Path.cwd(), ledger.path.parent)
    workspace = stack.enter_context(
        Workspace.open(task, name, ledger.path.parent, datetime.date.today(), request.language)
    )
    if interrupted:
        record = interrupted[0]
        iterations = [replace(iteration, entry=present_name(iteration.entry)) for iteration in interrupted[1]]
        kept = still_kept(iterations)
        commit = str(kept[-1].commit) if kept else workspace.base_commit
        if commit != workspace.kept:  # the process was killed after writing the ledger, before moving the ref
            workspace.keep(commit)
        incumbent = builder.build_one(f"resumed-{len(iterations)}", workspace.texts())
    else:
        try:
            record = ledger.begin(record_of(request, name, key, seed, machine, metrics, gate, workspace))
        except BaseException:
            workspace.forget()
            raise
        iterations, incumbent = [], baseline
    history = ledger.history(measured=gate.measured, arch=target.board.arch, kind=record.kind or None, without=name)
    propose, proposer = request.options.propose, None
    if propose is not None and ask is not None:
        proposer = ExternalProposer(propose, ask, task.file, ledger.folder(name))
    setup = Setup(
        record, ledger, workspace, builder, gate, entries,
        addable(catalogue(), request.language, request.options.lossy),
        (*proposers, FromFiles(request.options.changes, iterations)), by_present_name(history), bounds,
        request.options, request.progress, OtherArchitectures.of(builder, baseline, request.options.slower_elsewhere),
        proposer,
    )  # fmt: skip
    return Start(setup, baseline, metrics, incumbent, iterations, checker)


def _opened(stack: ExitStack, request: OptimizeRequest, builder: Builder) -> Executor | None:
    """Lets the worker process open the task while the untouched code is compiled. None if nothing is measured."""
    if not request.target.measured:
        return None
    session = stack.enter_context(request.session or executor_of("local")())
    files = versions.materialise(builder.folder, BASELINE, request.texts).files
    session.open(builder.where, files)
    return session


def _gate(
    stack: ExitStack, request: OptimizeRequest, baseline: Variant, bounds: Mapping[str, Bound],
    checker: VariantChecker, done: int,
) -> Gate:  # fmt: skip
    """Makes the gate. ``done``: number of iterations that an interrupted run has finished.

    The number is part of the seed, so that fresh inputs are not drawn twice.
    """
    if request.session is None:
        return PredictedGate(checker, request.workloads, bounds)
    task, seed = request.task, request.seed
    assert seed is not None, "`prepare` draws the seed"
    limit = SpeedLimit(task, request.target.board, request.policy)
    arena = Arena(
        task, where_is(task), baseline.entrant, request.policy, seed, request.progress, request.session, limit.refusal,
        is_open=True,
    )  # fmt: skip
    return MeasuredGate(stack.enter_context(arena), checker, request.workloads, bounds, f"{seed}, after {done}")
