"""`tilewright optimize`: sets up a `loop.Loop`, runs it, and says what it ends with.

With a GPU every result is measured; without one, or for another architecture than the GPU's, each is predicted
and says so, and the result ends with the command that confirms it on a GPU.
"""

from __future__ import annotations

import datetime
import math
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tilewright.compile.compile import BUDGET_SECONDS
from tilewright.errors import Incorrect, RequestError, UnknownChoice
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import Target, machine_of, target_of
from tilewright.inspect.work import bound_of
from tilewright.ledger.file import key_of
from tilewright.ledger.ledger import Ledger
from tilewright.ledger.records import Iteration, Metrics, RunRecord, still_kept
from tilewright.optimize.attempting import Builder, Variant
from tilewright.optimize.decide import PATIENCE, POLICIES
from tilewright.optimize.escalating import FinalTime, Tried, escalation
from tilewright.optimize.gates.base import Gate
from tilewright.optimize.gates.interpreting import Interpreting
from tilewright.optimize.gates.predicted import PredictedGate
from tilewright.optimize.loop import Limits, Loop, Setup, baseline_iteration
from tilewright.optimize.optimized import Optimized, us_of
from tilewright.optimize.proposed import FromFiles, Proposer, check_changes
from tilewright.optimize.versions.version import read_source
from tilewright.optimize.versions.workspace import Workspace
from tilewright.playbook import catalogue
from tilewright.playbook.base import Entry, by_present_name, present_name
from tilewright.progress import Progress, silent
from tilewright.race.rules import Policy
from tilewright.records import Bound, Machine, Workload
from tilewright.task.loading import editable_files, task_of, where_is
from tilewright.task.task import Task
from tilewright.worker.session import Session

ITERATIONS = 25
"""P-23."""
MINUTES = 10.0
"""P-11."""
FULL_CHECK_SECONDS = 60.0
"""For the last incumbent's check on hostile shapes and data, by the interpreter."""


@dataclass(frozen=True)
class Options:
    """What a person may ask of the loop."""

    policy: Literal["default", "base"] = "default"
    iterations: int = ITERATIONS
    minutes: float = MINUTES
    patience: int = PATIENCE
    lossy: bool = False
    """Whether entries that round differently by design may be tried."""
    changes: tuple[Path, ...] = ()
    """Patches or files that are tried first."""
    jobs: int | None = None
    seconds: float = BUDGET_SECONDS
    """Wall time of one compiler run."""
    only: tuple[str, ...] = ()
    """Names of the entries that may be tried; all where none is named."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UnknownChoice("policy", self.policy, POLICIES)
        if self.iterations < 0 or self.patience < 1 or self.minutes <= 0:
            raise RequestError("iterations must be 0 or more, patience 1 or more, and minutes above 0")
        known = [entry.about.id for entry in catalogue()]
        for name in self.only:
            if name not in known:
                raise UnknownChoice("entry", name, known)


def optimize(
    task: Task | str,
    *,
    arch: str | None = None,
    workloads: Sequence[str] | None = None,
    options: Options | None = None,
    policy: Policy | None = None,
    seed: int | None = None,
    ledger: Ledger | None = None,
    fresh: bool = False,
    session: Session | None = None,
    proposers: Sequence[Proposer] = (),
    progress: Progress = silent,
) -> Optimized:
    """Changes the kernel one thing at a time, and keeps what is verified and faster.

    task: a task, or ``FILE[:TASK]``.
    policy: how the races measure.
    seed: of the inputs; drawn where none is given, and recorded.
    ledger: where every attempt is kept; the default one is in `database.home`. An interrupted run with the same
        key goes on where it stopped, unless ``fresh``.
    session: a worker process that is starting already (`session.early_session`).
    proposers: who may propose changes; asked before the playbook.
    """
    task = task_of(task)
    options, policy = options or Options(), policy or Policy()
    check_changes(options.changes, editable_files(task))
    target = target_of(arch, detect())
    with ExitStack() as stack:
        if session is not None:
            stack.enter_context(session)
            if not target.measured:
                session.close(wait=False)
                session = None
        if ledger is None:
            ledger = stack.enter_context(Ledger())
        asked = _Asked(task, target, tuple(task.selected(workloads)), options, policy, seed, session, progress)
        return _run(stack, asked, ledger, fresh, proposers)


@dataclass(frozen=True)
class _Asked:
    task: Task
    target: Target
    workloads: tuple[Workload, ...]
    options: Options
    policy: Policy
    seed: int | None
    session: Session | None
    progress: Progress

    @property
    def texts(self) -> dict[Path, str]:
        return {path: read_source(path) for path in editable_files(self.task)}

    def key(self, versions: Mapping[str, str]) -> str:
        """What makes an interrupted run the same."""
        options = self.options
        changes = {str(path): read_source(path) for path in options.changes}
        return key_of(
            {
                "optimize": where_is(self.task),
                "texts": {str(path): text for path, text in self.texts.items()},
                "task": self.task.file.read_text() if self.task.file else "",
                "board": self.target.board.name,
                "measured": self.target.measured,
                "policy": self.policy.to_json(),
                "options": {**vars(options), "changes": changes},
                "workloads": [workload.name for workload in self.workloads],
                "seed": self.seed,
                "versions": dict(versions),
            }
        )


def _run(stack: ExitStack, asked: _Asked, ledger: Ledger, fresh: bool, proposers: Sequence[Proposer]) -> Optimized:
    task, target = asked.task, asked.target
    machine = machine_of(target)
    key = asked.key(machine.versions)
    interrupted = None if fresh else ledger.resume(key)
    seed = interrupted[0].seed if interrupted else asked.seed
    seed = seed if seed is not None else secrets.randbits(31)
    name = interrupted[0].run if interrupted else ledger.new_name()
    asked.progress("baseline", 0, None, f"{task.name}: the untouched code")
    builder = Builder(
        task, where_is(task), target.board, asked.workloads, ledger.folder(name) / "versions",
        asked.options.jobs, asked.options.seconds,
    )  # fmt: skip
    baseline = builder.certain("baseline", asked.texts)
    bounds = {one.name: bound_of(task, one, target.board) for one in asked.workloads}
    interpreting = stack.enter_context(closing(Interpreting(task, target.board, asked.workloads, seed)))
    done = len(interrupted[1]) if interrupted else 0
    gate = _gate(stack, asked, baseline, bounds, interpreting, seed, done)
    standings = gate.baseline(baseline)
    if isinstance(standings, str):
        raise Incorrect(f"the untouched code of task '{task.name}' is not correct: {standings}")
    workspace = stack.enter_context(Workspace.open(task, name, ledger.path.parent, datetime.date.today()))
    if interrupted:
        record = interrupted[0]
        iterations = [replace(one, entry=present_name(one.entry)) for one in interrupted[1]]
        _agree(workspace, iterations)
        incumbent = builder.certain(f"resumed-{len(iterations)}", workspace.texts())
    else:
        record, iterations = (ledger.begin(_record(asked, name, key, seed, machine, standings, gate, workspace)), [])
        incumbent = baseline
    setup = Setup(
        record, ledger, workspace, builder, gate, _entries(asked.options),
        (*proposers, FromFiles(asked.options.changes, iterations)),
        by_present_name(
            ledger.history(measured=gate.measured, arch=target.board.arch, kind=record.kind or None, without=name)
        ),
        bounds, _limits(asked.options), asked.progress,
    )  # fmt: skip
    loop = Loop(setup, incumbent, iterations)
    if not iterations:
        loop.append(baseline_iteration(standings))
    reasons = [loop.run(), _checked(loop, baseline, interpreting)]
    return _finished(asked, loop, [one for one in reasons if one])


def _agree(workspace: Workspace, iterations: Sequence[Iteration]) -> None:
    """The ledger is written first: a kill may have come before the workspace followed."""
    kept = still_kept(iterations)
    commit = str(kept[-1].commit) if kept else workspace.base_commit
    if commit != workspace.kept:
        workspace.keep(commit)


def _checked(loop: Loop, baseline: Variant, interpreting: Interpreting) -> str:
    """Takes back what is wrong on hostile shapes and data, the last change first. What is to be said of it."""
    while still_kept(loop.iterations):
        loop.setup.progress("check", 0, None, "hostile shapes and data")
        wrong = interpreting.incorrect(loop.incumbent, FULL_CHECK_SECONDS)
        if not wrong:
            break
        if before := interpreting.incorrect(baseline, FULL_CHECK_SECONDS):
            return f"on other shapes and data the untouched code is not correct, with or without a change: {before}"
        loop.undo(wrong)
    return ""


def _finished(asked: _Asked, loop: Loop, reasons: list[str]) -> Optimized:
    setup = loop.setup
    final = setup.gate.final(loop.incumbent)
    if told := _escalated(loop, final):
        reasons.append(told)
    patch = setup.workspace.patch()
    setup.ledger.finish(setup.run.run, "; ".join(reasons), final, patch)
    folder = setup.ledger.folder(setup.run.run)
    (folder / "changes.patch").write_text(patch)
    return Optimized(setup.ledger.run(setup.run.run), tuple(loop.iterations), patch, folder, asked.target.note)


def _escalated(loop: Loop, final: Sequence[Metrics]) -> str:
    """What a person should look at, where the loop ends far from the bound and the cause does not show (P-22). Of
    predicted times nothing follows: how far they are from the bound is the model's affair."""
    if not loop.setup.gate.measured:
        return ""
    variant, board = loop.incumbent, loop.setup.board
    cases = [
        FinalTime(one.workload, one.bound, us, one.code, math.prod(variant.grids[one.workload]))
        for one in final
        if one.bound is not None and (us := us_of(one))
    ]
    tried = [
        Tried(one.entry, one.optimization, one.status == "keep", one.reason, 1 / one.gain if one.gain else None)
        for one in loop.iterations[1:]
    ]
    found = escalation(tried, cases, board.sms) if cases else None
    if found is None or not found.needed:
        return ""
    look_at = (*loop.findings(), *found.look_at)
    return f"escalated: {found.cause}: {found.why}; look at {'; '.join(look_at)}"


def _gate(
    stack: ExitStack, asked: _Asked, baseline: Variant, bounds: Mapping[str, Bound],
    interpreting: Interpreting, seed: int, done: int,
) -> Gate:  # fmt: skip
    """``done``: iterations of an interrupted run, whose fresh inputs are not to come again."""
    if not asked.target.measured:
        return PredictedGate(interpreting, asked.workloads, bounds)
    from tilewright.optimize.gates.arena import Arena
    from tilewright.optimize.gates.measured import MeasuredGate

    arena = stack.enter_context(
        Arena(asked.task, where_is(asked.task), baseline.version, asked.policy, seed, asked.progress, asked.session)
    )
    return MeasuredGate(arena, interpreting, asked.workloads, bounds, f"{seed}, after {done}")


def _record(
    asked: _Asked, name: str, key: str, seed: int, machine: Machine, standings: tuple[Metrics, ...],
    gate: Gate, workspace: Workspace,
) -> RunRecord:  # fmt: skip
    task, board, options = asked.task, asked.target.board, asked.options
    where = where_is(task)
    return RunRecord(
        run=name,
        key=key,
        task=task.name,
        kernel=workspace.kernel,
        where=where,
        machine=machine,
        measured=gate.measured,
        board=board.name,
        bandwidth_gbs=board.bandwidth_gbs,
        dtype=task.compute_dtype,
        seed=seed,
        baseline=standings,
        policy={"decision": options.policy, "patience": options.patience, "race": asked.policy.to_json()},
        options={**vars(options), "changes": [str(path) for path in options.changes]},
        noise=gate.noise,
        branch=workspace.branch,
        base_commit=workspace.base_commit,
        reproduce=_command(asked, where, seed, asked.target.measured),
        confirm="" if gate.measured else _command(asked, where, seed, True),
    )


def _command(asked: _Asked, where: str, seed: int, measured: bool) -> str:
    """The command that makes this run again; where ``measured``, on a machine with a GPU."""
    options = asked.options
    words = ["tilewright", "optimize", where, "--seed", str(seed), "--fresh"]
    if not measured:
        words += ["--arch", asked.target.board.arch]
    if len(asked.workloads) != len(asked.task.workloads):
        words += [word for one in asked.workloads for word in ("--workload", one.name)]
    for name, value, usual in (
        ("--policy", options.policy, "default"), ("--iterations", options.iterations, ITERATIONS),
        ("--minutes", options.minutes, MINUTES), ("--patience", options.patience, PATIENCE),
    ):  # fmt: skip
        if value != usual:
            words += [name, str(value)]
    if options.lossy:
        words.append("--allow-lossy")
    words += [word for path in options.changes for word in ("--change", str(path))]
    words += [word for entry in options.only for word in ("--only", entry)]
    return shlex.join(words)


def _entries(options: Options) -> tuple[Entry, ...]:
    return tuple(entry for entry in catalogue() if not options.only or entry.about.id in options.only)


def _limits(options: Options) -> Limits:
    return Limits(options.policy, options.iterations, options.minutes, options.patience, options.lossy)
