"""Makes the records of a run for the ledger and git: the run, commit messages, and differences of the code."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tilewright.errors import RequestError
from tilewright.hardware.architectures import Board
from tilewright.inspect.compare import Side, compare_tile_ir
from tilewright.inspect.kernel_class import classification
from tilewright.ledger.records import Iteration, Metrics, RunRecord, WorkloadOutcome
from tilewright.optimize.attempting import Variant
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.decide import PATIENCE
from tilewright.optimize.gates.base import Gate
from tilewright.optimize.options import ITERATIONS, MINUTES, OptimizeRequest
from tilewright.optimize.versions.workspace import Workspace
from tilewright.race.stats import geometric_mean
from tilewright.records import Machine, MachineCode, MeasuredTime, Value, Workload
from tilewright.remote import on_words
from tilewright.task.loading import where_is
from tilewright.tileir.analysis.comparing import Comparison

MOST_OPERATIONS = 12
"""The most kinds of operations that `what_changed` names. Kinds whose number changed most come first."""


def record_of(
    request: OptimizeRequest, name: str, key: str, seed: int, machine: Machine, baseline: tuple[Metrics, ...],
    gate: Gate, workspace: Workspace,
) -> RunRecord:  # fmt: skip
    """Makes the ledger's record of a new run."""
    task, board, options = request.task, request.target.board, request.options
    where = where_is(task)
    return RunRecord(
        run=name, key=key, task=task.name, language=request.language, kernel=workspace.kernel, where=where,
        machine=machine, measured=gate.measured, board=board.name, bandwidth_gbs=board.bandwidth_gbs,
        dtype=task.compute_dtype, classification=classification(request.language, task, request.workloads[0], board),
        seed=seed, baseline=baseline,
        policy={"decision": options.policy, "patience": options.patience, "race": request.policy.to_json()},
        options=options.to_json(),
        noise=gate.noise, branch=workspace.branch, base_commit=workspace.base_commit,
        reproduce=command_of(request, where, seed, request.target.measured),
        confirm="" if gate.measured else command_of(request, where, seed, True),
    )  # fmt: skip


def command_of(request: OptimizeRequest, where: str, seed: int, measured: bool) -> str:
    """Returns the command that repeats this run. ``measured``: whether the run measures on a GPU."""
    options = request.options
    words = ["tilewright", "optimize", where, "--seed", str(seed), "--fresh"]
    if not measured:
        words += ["--arch", request.target.board.arch]
    if len(request.workloads) != len(request.task.workloads):
        words += [word for workload in request.workloads for word in ("--workload", workload.name)]
    for name, value, usual in (
        ("--policy", options.policy, "default"), ("--iterations", options.iterations, ITERATIONS),
        ("--minutes", options.minutes, MINUTES), ("--stop-after", options.stop_after, math.inf),
        ("--patience", options.patience, PATIENCE), ("--test", options.test, ""),
    ):  # fmt: skip
        if value != usual:
            words += [name, str(value)]
    if options.lossy:
        words.append("--allow-lossy")
    if options.slower_elsewhere:
        words.append("--allow-slower-elsewhere")
    words += [word for path in options.changes for word in ("--change", str(path))]
    words += [word for entry in options.only for word in ("--only", entry)]
    if (propose := options.propose) is not None:
        words += ["--propose", propose.command, "--propose-seconds", f"{propose.seconds:g}"]
        words += ["--propose-attempts", str(propose.attempts), "--propose-failures", str(propose.failures)]
        words += ["--propose-only"] if propose.only else []
    return shlex.join([*words, *on_words()])


def message_of(n: int, proposal: Proposal, value: Value, reason: str) -> str:
    """Returns the commit message: what was changed, where, and the evidence."""
    lossy = " (lossy)" if proposal.risk == "lossy" else ""
    head = f"{proposal.name} = {value}{lossy}" if str(value) != proposal.place else f"{proposal.name}{lossy}"
    return f"{head}\n\nIteration {n}, {proposal.entry} at {proposal.place}.\n{reason}\nChosen: {proposal.why}\n"


def baseline_iteration(baseline: Sequence[Metrics]) -> Iteration:
    """Makes iteration 0 of the ledger, which is the untouched code."""
    outcomes = tuple(
        WorkloadOutcome(
            workload=metrics.workload, verdict="the untouched code", measured=metrics.measured,
            predicted=metrics.predicted, code=metrics.code,
        )
        for metrics in baseline
    )  # fmt: skip
    return with_times(
        Iteration(
            n=0, optimization="baseline", correctness="PASS", status="keep", reason="the untouched code",
            outcomes=outcomes,
        )
    )  # fmt: skip


def with_times(iteration: Iteration) -> Iteration:
    """Adds the mean times over all workloads to the iteration."""
    measured = [outcome.measured for outcome in iteration.outcomes if outcome.measured is not None]
    predicted = [outcome.predicted.us for outcome in iteration.outcomes if outcome.predicted is not None]
    return replace(
        iteration, latency_ms=mean_ms(time.us for time in measured), interval_ms=mean_interval_ms(measured),
        predicted_ms=mean_ms(predicted),
    )  # fmt: skip


def mean_ms(times_us: Iterable[float]) -> float | None:
    """Returns the geometric mean of times in ms; None if there are no times."""
    mean = geometric_mean(times_us)
    return None if mean is None else mean / 1e3


def mean_interval_ms(measured: Sequence[MeasuredTime]) -> tuple[float, float] | None:
    """Returns the geometric means of the lower and of the upper bounds of the intervals, in ms."""
    low = mean_ms(max(time.interval_us[0], 1e-9) for time in measured)
    high = mean_ms(time.interval_us[1] for time in measured)
    return (low, high) if low is not None and high is not None and math.isfinite(high) else None


def what_changed(before: Variant, after: Variant, workload: Workload, board: Board) -> str:
    """Compares Tile IR and machine code of two variants on one workload. Returns one difference per line."""
    a, b = (Side(each.version.name, each.task, each.task.space.shipped, workload) for each in (before, after))
    try:
        comparison, grids = compare_tile_ir(a, b, board)
    except RequestError as error:
        return f"Tile IR not compared: {error}"
    lines = [f"workload {workload}, {board.arch}"]
    if grids[0] != grids[1]:
        lines.append(f"grid: {grids[0]} → {grids[1]}")
    lines += _tile_ir(comparison)
    lines += _machine_code(before.codes[workload.name], after.codes[workload.name])
    return "\n".join(lines)


def _tile_ir(comparison: Comparison) -> Iterator[str]:
    if comparison.identical:
        yield "Tile IR: identical"
        return
    yield f"Tile IR: {comparison.operations_before} → {comparison.operations_after} operations"
    changes: Counter[str] = Counter()
    for line in comparison.lines:
        for counts in line.operations:
            changes[counts.operation] += counts.after - counts.before
    named = sorted((item for item in changes.items() if item[1]), key=lambda item: -abs(item[1]))
    if named:
        yield "Tile IR: " + ", ".join(f"{name} {number:+d}" for name, number in named[:MOST_OPERATIONS])
    for hint in comparison.hints:
        yield f"hint {hint.trait}: {hint.before} → {hint.after}"


def _machine_code(a: MachineCode, b: MachineCode) -> Iterator[str]:
    if a.code_hash == b.code_hash:
        yield "machine code: identical"
        return
    for name in ("registers", "stack_bytes", "shared_bytes", "threads", "cluster", "local_loads", "local_stores",
                 "tensor_path", "tensor_instructions", "instructions"):  # fmt: skip
        before, after = a.known[name], b.known[name]
        if before != after and None not in (before, after):
            yield f"{name.replace('_', ' ')}: {before} → {after}"
    if unread := a.unread or b.unread:
        yield f"instructions: not compared, {unread}"
        return
    for kind in dict.fromkeys((*a.copies, *b.copies)):
        if a.copies.get(kind, 0) != b.copies.get(kind, 0):
            yield f"{kind}: {a.copies.get(kind, 0)} → {b.copies.get(kind, 0)}"
