"""The result of `tilewright agent` as text: each item of the plan with its outcome, its effect and the evidence."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.coordinate.from_run import FOUND
from tilewright.ledger.agent_records import AgentMeasurement, AgentParts, AgentRun


def lines(run: AgentRun, parts: AgentParts) -> Iterator[str]:
    """Yields the lines of the result. Each measured number is followed by the id of its measurement in the ledger."""
    yield f"Run {run.run}: {run.stop_reason}"
    for item in parts.items:
        end = parts.end_of(item.id)
        if end is not None:
            why = f", {end.why}" if end.why else ""
            yield f"  {item.id} {end.status}{why}: {end.reason}{_id(end.evidence, run)}"
    for each in parts.findings:
        if each.id.startswith(FOUND) and each.item != each.id:
            yield f"  {each.id} belongs to {each.item}: {each.text}{_id(each.evidence, run)}"
        if each.dismissed:
            yield f"  {each.id} dismissed: {each.dismissed}"
    yield from _effect(run, parts.measurement(run.effect))
    if (proof := parts.measurement(run.proof)) is not None:
        yield f"Proof that the changed code ran: {proof.verdict}; {proof.reason}{_id(proof.id, run)}"
    if parts.kept:
        yield f"Take it back: tilewright agent --undo {run.run}"
    yield f"Report: tilewright report {run.run}"


def _effect(run: AgentRun, effect: AgentMeasurement | None) -> Iterator[str]:
    if effect is None:
        return
    if effect.ratio is None:
        yield f"Effect on your command: not measured: {effect.reason}"
        return
    before, after = effect.values["step before, µs"], effect.values["step after, µs"]
    unit = str(effect.facts.get("unit", "step"))
    yield (
        f"Effect on your command, on {effect.device}: {before / 1e3:.4g} ms before, {after / 1e3:.4g} ms after "
        f"({unit}); {effect.ratio} of the time, {effect.verdict}{_id(effect.id, run)}"
    )


def _id(evidence: str, run: AgentRun) -> str:
    """Returns the id of a measurement in brackets, without the name of the run. Returns "" if there is no id."""
    short = evidence.removeprefix(f"{run.run}/")
    return f" [{short}]" if short else ""
