"""The report of one change that the user asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ledger.agent_records import AgentChange, AgentItem
from tilewright.report.agent.evidence import APPLIED, ROLLED_BACK, AgentEvidence
from tilewright.report.agent.impact import Impact, gain_of, impact_of
from tilewright.report.agent.sections import (
    PROOF,
    AgentReport,
    ReportPoint,
    ReportSection,
    described,
    principle,
    verdict,
)
from tilewright.report.sourced import NOT_MEASURED, Sourced, citing, key


def single(evidence: AgentEvidence) -> AgentReport:
    (item,) = evidence.parts.items
    changes = evidence.parts.changes_of(item.id)
    change = next((each for each in reversed(changes) if each in evidence.parts.kept), changes[-1] if changes else None)
    result = _result(evidence, item, change)
    return AgentReport(
        f"Optimization {_done(evidence, change)}: {change.name if change else item.text}", result, (),
        (
            ReportSection("Prerequisites Checked", tuple(_prerequisites(evidence, item, change))),
            _implementation(evidence, item, change),
            ReportSection("Validation", header=("Metric", "Before", "After", "Change"),
                    rows=tuple(_validation(evidence, change)), lines=tuple(_checks(evidence, change))),
            ReportSection("Result", lines=(result, *_unfinished(evidence))),
        ),
    )  # fmt: skip


def _unfinished(evidence: AgentEvidence) -> tuple[str, ...]:
    """Returns a line if the user's own command is not measured yet, although all items have ended; otherwise
    nothing."""
    if evidence.run.finished or any(evidence.open_items()):
        return ()
    return (f"NOT FINISHED: the effect on the user's own command is {NOT_MEASURED}; the same command resumes it",)


def _done(evidence: AgentEvidence, change: AgentChange | None) -> str:
    if change is None or change not in evidence.tried:
        return "Not Applied" if not any(evidence.open_items()) else "Not Finished"
    state = evidence.state(change)
    return {APPLIED: APPLIED, ROLLED_BACK: "Rolled Back"}.get(state, "Not Finished")


def _prerequisites(evidence: AgentEvidence, item: AgentItem, change: AgentChange | None) -> Iterator[ReportPoint]:
    """Yields two check boxes: for the code and for the hardware."""
    end = evidence.parts.end_of(item.id)
    if change is None:
        reason = f"{end.why}: {end.reason}" if end else "not checked yet"
        yield ReportPoint(Sourced(f"Code compatibility: {reason}", f"ends/{key(item.id)}/reason"), "- [ ] ")
        yield ReportPoint("Hardware requirements: not checked, there is no change that needs any", "- [ ] ")
        return
    checked = next((step for step in evidence.parts.steps_of(change.id) if step.name == "prerequisites"), None)
    if checked is None or checked.state != "done":
        reason = checked.reason if checked else "not checked yet"
        yield ReportPoint(f"Code compatibility: {reason}", "- [ ] ")
        yield ReportPoint(f"Hardware requirements: {reason}", "- [ ] ")
        return
    yield ReportPoint(
        Sourced(f"Code compatibility verified: {evidence.site(change)}", f"changes/{key(change.id)}/site"), "- [x] "
    )
    yield ReportPoint(citing(f"Hardware requirements met: {_hardware(evidence)}", _hardware(evidence)), "- [x] ")


def _hardware(evidence: AgentEvidence) -> Sourced:
    machine = evidence.run.machine
    if machine.gpu is None:
        return Sourced("this CPU; nothing ran on a GPU", "run/machine/gpu")
    return Sourced(f"{machine.gpu} ({machine.arch})", "run/machine/gpu", "run/machine/arch")


def _implementation(evidence: AgentEvidence, item: AgentItem, change: AgentChange | None) -> ReportSection:
    who = change.specialist if change else ", then ".join(item.specialists)
    changes = Sourced(described(evidence, change), f"changes/{key(change.id)}/site") if change else "none"
    points = [ReportPoint(who, title="Specialist"), ReportPoint(changes, title="Changes")]
    if said := principle(evidence, item):
        points.append(ReportPoint(said, title="Principle"))
    return ReportSection("Implementation", tuple(points), diff=change.diff if change else "")


def _validation(evidence: AgentEvidence, change: AgentChange | None) -> Iterator[Sequence[str]]:
    """Yields throughput and latency of the change and of the user's own command."""
    race = evidence.race(change) if change else None
    yield from _metric_rows(impact_of(race))
    if evidence.effect is not None:
        yield from _metric_rows(impact_of(evidence.effect), " of the user's command, start to end")


def _metric_rows(impact: Impact, of: str = "") -> Iterator[Sequence[str]]:
    yield f"Throughput{of}", *impact.throughput, impact.throughput_change.cell
    yield f"Latency{of}", *impact.latency, impact.latency_change.cell


def _checks(evidence: AgentEvidence, change: AgentChange | None) -> Iterator[str]:
    """Yields further checks: the outputs, whether the changed code ran, and the device of the measurement."""
    outputs = evidence.measured("outputs", change.id) if change else None
    yield verdict("Outputs", outputs)
    yield verdict(PROOF, evidence.proof(change))
    race = evidence.race(change) if change else None
    yield Sourced(f"Measured on: {race.device}", f"{race.id}/device") if race else f"Measured on: {NOT_MEASURED}"


def _result(evidence: AgentEvidence, item: AgentItem, change: AgentChange | None) -> str:
    """Returns the outcome. If the user's own command does not show the gain, the text calls it a gain of the change
    alone."""
    end = evidence.parts.end_of(item.id)
    if end is None:
        return f"NOT FINISHED: {_next(evidence, change)}; the same command resumes it"
    if end.status == "rolled back":
        return Sourced(f"ROLLED BACK: {end.reason}", f"ends/{key(item.id)}/reason")
    if change is None or end.status != "applied":
        return Sourced(f"NOT APPLIED: {end.why}: {end.reason}", f"ends/{key(item.id)}/reason")
    race, effect = evidence.race(change), evidence.effect
    if effect is not None and effect.verdict == "faster":
        return citing(f"SUCCESS: Achieved {gain_of(effect)} improvement", gain_of(effect))
    if race is not None and race.verdict == "faster":
        gain, only = gain_of(race), effect is not None
        if not only:
            return citing(f"SUCCESS: Achieved {gain} improvement", gain)
        text = f"A GAIN OF THE CHANGE ALONE: {gain}; the user's own command is not faster beyond the noise"
        return citing(text, gain)
    return Sourced(f"APPLIED AS ASKED, NO GAIN: {end.reason}", f"ends/{key(item.id)}/reason")


def _next(evidence: AgentEvidence, change: AgentChange | None) -> str:
    state = evidence.state(change) if change else ""
    return state.partition(": ")[2] or "the specialist has not answered yet"
