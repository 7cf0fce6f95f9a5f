"""Turns runs, comparisons and races of a program into measurements for the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from tilewright.ledger.agent_records import AgentMeasurement, MeasurementKind
from tilewright.program.deciding import OperationCount
from tilewright.program.outputs import ComparedRuns
from tilewright.program.race import ProgramRace
from tilewright.program.run import ProgramFailed, ProgramRun
from tilewright.records import Json

CPU = "this CPU"


def device_of(name: str) -> str:
    """Returns what a report calls the device of a run."""
    return CPU if name in ("", "cpu") else name


def baseline_measured(run: ProgramRun, command: str) -> AgentMeasurement:
    """Returns the measurement of the unchanged program, without a comparison."""
    values = {"wall time, s": run.wall_s, "steps": float(run.steps)}
    if run.step_us:
        values["median step, µs"] = median(run.step_us)
    facts: dict[str, Json] = {"unit": run.unit, "cut": run.cut}
    return AgentMeasurement(
        kind="baseline", about=f"{command} as it is", values=values, samples_us={"as it is": run.step_us},
        verdict="measured", device=device_of(run.device), facts=facts,
    )  # fmt: skip


def run_measured(
    run: ProgramRun | ProgramFailed, change: str, counts: Sequence[OperationCount]
) -> AgentMeasurement:  # fmt: skip
    """Returns the measurement of a changed program's run: whether the changed code ran."""
    if isinstance(run, ProgramFailed):
        values = {} if run.exit_code is None else {"exit code": float(run.exit_code)}
        return AgentMeasurement(kind="operations", about="the changed program", change=change, values=values,
                                verdict="failed", reason=run.last_line or run.reason)  # fmt: skip
    return operations_measured("the changed program, against the version before", run, counts, change)


def operations_measured(
    about: str, after: ProgramRun, counts: Sequence[OperationCount], change: str = ""
) -> AgentMeasurement:
    """Returns the measurement of how often the operations of each pattern ran."""
    shown = "ran" if any(each.shown for each in counts) else "not shown to run" if counts else "no pattern"
    return AgentMeasurement(
        kind="operations", about=about, change=change, values=dict(_values(counts)), verdict=shown,
        reason="; ".join(_said(each) for each in counts), device=device_of(after.device),
        facts={"operations": sum(after.operations.values()), "kernels": sum(after.kernels.values())},
    )  # fmt: skip


def _values(counts: Iterable[OperationCount]) -> Iterable[tuple[str, float]]:
    for each in counts:
        yield f"{each.pattern}, before", float(each.before)
        yield f"{each.pattern}, after", float(each.after)


def _said(count: OperationCount) -> str:
    return f"{count.pattern} ran {count.before} times before and {count.after} times after"


def outputs_measured(compared: ComparedRuns, change: str, device: str) -> AgentMeasurement:
    """Returns the measurement of a changed program's outputs against the outputs of the unchanged program."""
    values = {} if compared.worst is None else {"largest difference over its tolerance": compared.worst}
    return AgentMeasurement(kind="outputs", about="outputs, against the unchanged program", change=change,
                            values=values, verdict=compared.verdict, reason=compared.reason, device=device)  # fmt: skip


def race_measured(
    raced: ProgramRace | ProgramFailed, kind: MeasurementKind, about: str, change: str = ""
) -> AgentMeasurement:
    """Returns the measurement of a race. ``kind`` is ``race`` for one change, and ``effect`` for all kept changes
    together.
    """
    if isinstance(raced, ProgramFailed):
        return AgentMeasurement(kind=kind, about=about, change=change, verdict="failed",
                                reason=raced.last_line or raced.reason)  # fmt: skip
    values = {"step before, µs": raced.before_us, "step after, µs": raced.after_us, "rounds": float(raced.rounds)}
    facts: dict[str, Json] = {"unit": raced.unit, "machine": raced.machine}
    return AgentMeasurement(
        kind=kind, about=about, change=change, values=values, ratio=raced.ratio, samples_us=dict(raced.samples),
        verdict=raced.decided, reason=raced.reason, device=device_of(raced.device), facts=facts,
    )  # fmt: skip
