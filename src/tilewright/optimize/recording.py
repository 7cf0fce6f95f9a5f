"""What the ledger and git keep of a run: its record, the command that repeats it, row 0, the message of a commit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tilewright.ledger.records import Iteration, Metrics, RunRecord, WorkloadOutcome
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.decide import PATIENCE
from tilewright.optimize.gates.base import Gate
from tilewright.optimize.metrics import mean_interval_ms, mean_ms
from tilewright.optimize.options import ITERATIONS, MINUTES, OptimizeRequest
from tilewright.optimize.versions.workspace import Workspace
from tilewright.records import Machine, Value
from tilewright.task.loading import where_is


def record_of(
    request: OptimizeRequest, name: str, key: str, seed: int, machine: Machine, standings: tuple[Metrics, ...],
    gate: Gate, workspace: Workspace,
) -> RunRecord:  # fmt: skip
    """What the ledger holds of a run when it begins."""
    task, board, options = request.task, request.target.board, request.options
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
        policy={"decision": options.policy, "patience": options.patience, "race": request.policy.to_json()},
        options={**vars(options), "changes": [str(path) for path in options.changes]},
        noise=gate.noise,
        branch=workspace.branch,
        base_commit=workspace.base_commit,
        reproduce=command_of(request, where, seed, request.target.measured),
        confirm="" if gate.measured else command_of(request, where, seed, True),
    )


def command_of(request: OptimizeRequest, where: str, seed: int, measured: bool) -> str:
    """The command that makes this run again; where ``measured``, on a machine with a GPU."""
    options = request.options
    words = ["tilewright", "optimize", where, "--seed", str(seed), "--fresh"]
    if not measured:
        words += ["--arch", request.target.board.arch]
    if len(request.workloads) != len(request.task.workloads):
        words += [word for workload in request.workloads for word in ("--workload", workload.name)]
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


def message_of(n: int, proposal: Proposal, value: Value, reason: str) -> str:
    """Of the commit: what, where, and the evidence."""
    lossy = " (lossy)" if proposal.risk == "lossy" else ""
    head = f"{proposal.name} = {value}{lossy}" if str(value) != proposal.place else f"{proposal.name}{lossy}"
    return f"{head}\n\nIteration {n}, {proposal.entry} at {proposal.place}.\n{reason}\nChosen: {proposal.why}\n"


def baseline_iteration(standings: Sequence[Metrics]) -> Iteration:
    """Row 0: the untouched code."""
    measured = [metrics.measured for metrics in standings if metrics.measured is not None]
    predicted = [metrics.predicted.us for metrics in standings if metrics.predicted is not None]
    return Iteration(
        n=0,
        optimization="baseline",
        correctness="PASS",
        status="keep",
        reason="the untouched code",
        latency_ms=mean_ms(time.us for time in measured),
        interval_ms=mean_interval_ms(measured),
        predicted_ms=mean_ms(predicted),
        outcomes=tuple(
            WorkloadOutcome(
                workload=metrics.workload, verdict="the untouched code", measured=metrics.measured,
                predicted=metrics.predicted, code=metrics.code,
            )
            for metrics in standings
        ),
    )  # fmt: skip
