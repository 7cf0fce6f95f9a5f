"""The report of a run that tried several changes: the applied changes in order, and the remaining work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ledger.agent_records import AgentChange, AgentItem
from tilewright.report.agent.evidence import ROLLED_BACK, AgentEvidence
from tilewright.report.agent.impact import impact_of, latency, share, throughput, value_at, whole
from tilewright.report.agent.sections import (
    PROOF,
    AgentReport,
    ReportPoint,
    ReportSection,
    described,
    kept_of,
    principle,
    verdict,
)
from tilewright.report.sourced import NOT_MEASURED, Sourced, citing, joined, key

LIGHT_SOURCE = "speed of light source"
"""The name of the fact that names the source of a measurement's limit."""
VERDICTS = {
    "faster": "the user's own command is faster beyond the noise",
    "tied": "no effect on the user's own command was shown: each gain was measured for its change alone",
    "slower": "the user's own command is slower: each gain was measured for its change alone",
}


def multiple(evidence: AgentEvidence) -> AgentReport:
    result = _outcome(evidence)
    return AgentReport(
        "Optimization Summary", result,
        (("Goal", evidence.run.question), ("Starting Point", _start(evidence)), ("Result", result)),
        (
            ReportSection("Optimizations Applied (in order)", tuple(_applied(evidence)) or (ReportPoint("none"),)),
            ReportSection("Cumulative Results", header=("Metric", "Baseline", "Final", "Total Change"),
                    rows=tuple(_cumulative(evidence)),
                    lines=(verdict(PROOF, evidence.proof()), _light_source(evidence))),
            ReportSection("Remaining Opportunities", tuple(_remaining(evidence)) or (ReportPoint("none"),)),
        ),
    )  # fmt: skip


def _start(evidence: AgentEvidence) -> str:
    """Returns the baseline and the results of the analysis."""
    baseline = evidence.measured("baseline")
    parts = [NOT_MEASURED]
    if baseline is not None:
        us, wall = value_at(baseline, ", µs"), value_at(baseline, ", s")
        parts = [latency(us), throughput(us, baseline)] if us or not wall else [whole(wall)]
        parts += [Sourced(f"on {baseline.device}", f"{baseline.id}/device")]
    if evidence.run.bottleneck:
        parts += [Sourced(f"{text}", f"run/{name}") for name, text in (
            ("bottleneck", f"primary bottleneck: {evidence.run.bottleneck}"),
            ("bottleneck_evidence", evidence.run.bottleneck_evidence)) if text]  # fmt: skip
    return joined(parts, "; ")


def _outcome(evidence: AgentEvidence) -> str:
    """Returns the result of the run in one sentence."""
    open_items = len(tuple(evidence.open_items()))
    if not evidence.run.finished:
        text = f"not finished: {open_items} of {len(evidence.parts.items)} items are open; the same command resumes it"
        return joined([kept_of(evidence), Sourced(text, "items", "ends")], "; ")
    if not evidence.parts.kept:
        return joined([kept_of(evidence), "the program is as it was"], "; ")
    effect = evidence.effect
    if effect is None or not effect.values:
        why = Sourced(f": {effect.reason}", f"{effect.id}/reason") if effect else ""
        return joined(
            [kept_of(evidence), citing(f"the effect on the user's own command is {NOT_MEASURED}{why}", why)], "; "
        )
    verdict = Sourced(VERDICTS.get(effect.verdict, effect.verdict), f"{effect.id}/verdict")
    return joined([impact_of(effect).line, verdict, kept_of(evidence)], "; ")


def _applied(evidence: AgentEvidence) -> Iterator[ReportPoint]:
    for change in evidence.tried:
        item, race, state = evidence.item_of(change), evidence.race(change), evidence.state(change)
        impact = impact_of(race).line if race else NOT_MEASURED
        lines = [citing(f"Impact: {impact}", impact), f"Status: {state}"]
        if state == ROLLED_BACK:
            lines.append(_reason(evidence, change))
        lines.append(Sourced(f"Change: {described(evidence, change)}", f"changes/{key(change.id)}/site"))
        lines.append(f"Specialist: {change.specialist}")
        if item is not None and (said := principle(evidence, item)):
            lines.append(f"Principle: {said}")
        lines += _also_found(evidence, item)
        yield ReportPoint("", "1. ", tuple(lines), change.name)


def _reason(evidence: AgentEvidence, change: AgentChange) -> str:
    """Returns why a change was rolled back: the step that failed, else the outcome of its item."""
    failed = next((step for step in evidence.parts.steps_of(change.id) if step.state == "failed"), None)
    if failed is not None:
        return Sourced(f"Reason: {failed.name}: {failed.reason}", f"steps/{key(change.id)}/{failed.name}/reason")
    end = evidence.parts.end_of(change.item)
    return Sourced(f"Reason: {end.reason}", f"ends/{key(change.item)}/reason") if end else "Reason: not stored"


def _cumulative(evidence: AgentEvidence) -> Iterator[Sequence[str]]:
    """Yields the rows about the user's own command. Without a kept change there is only the baseline."""
    impact = impact_of(evidence.effect)
    baseline = evidence.measured("baseline")
    if evidence.effect is None and baseline is not None:
        us, light = value_at(baseline, ", µs"), value_at(baseline, "speed of light")
        before = (throughput(us, baseline), latency(us), share(light))
    else:
        before = (impact.throughput[0], impact.latency[0], impact.light[0])
    yield "Throughput", before[0], impact.throughput[1], impact.throughput_change.cell
    yield "Latency", before[1], impact.latency[1], impact.latency_change.cell
    yield "SOL%", before[2], impact.light[1], impact.light[2]


def _light_source(evidence: AgentEvidence) -> str:
    """Says where the limit of SOL% comes from, or why there is none."""
    effect = evidence.effect
    if effect is not None and (source := effect.facts.get(LIGHT_SOURCE)):
        return Sourced(f"SOL%: measured over limit; the limit is {source}", f"{effect.id}/facts/{key(LIGHT_SOURCE)}")
    return (
        f"SOL%: {NOT_MEASURED}, because bytes and operations of a whole program are not counted; those of a kernel "
        "are: tilewright optimize FILE:TASK"
    )


def _remaining(evidence: AgentEvidence) -> Iterator[ReportPoint]:
    """Yields each item without a kept change, each open item, and each dismissed finding, with the reason."""
    for item, end in evidence.remaining():
        at = f"ends/{key(item.id)}"
        why = Sourced(f"{end.why}: {end.reason}", f"{at}/why", f"{at}/reason")
        lines = [citing(f"Reason: {why}", why)]
        lines += [Sourced(f"Evidence: {end.evidence}", f"{at}/evidence")] if end.evidence else []
        yield _opportunity(evidence, item, lines)
    for item in evidence.open_items():
        yield _opportunity(evidence, item, ["Reason: not tried yet; the same command resumes the run"])
    for finding in evidence.parts.findings:
        if not finding.item:
            at = f"findings/{key(finding.id)}"
            lines = [Sourced(f"Reason: dismissed: {finding.dismissed}", f"{at}/dismissed")]
            lines += [Sourced(f"Evidence: {finding.evidence}", f"{at}/evidence")] if finding.evidence else []
            yield ReportPoint(Sourced(finding.text, f"{at}/text"), lines=tuple(lines))


def _opportunity(evidence: AgentEvidence, item: AgentItem, lines: Sequence[str]) -> ReportPoint:
    tag = f" ({name})" if (name := evidence.tag(item)) else ""
    lines = (*lines, *_also_found(evidence, item))
    return ReportPoint(Sourced(f"{item.text}{tag}", f"items/{key(item.id)}/text"), lines=lines)


def _also_found(evidence: AgentEvidence, item: AgentItem | None) -> list[str]:
    """Returns the findings of a recorded run at the places of an item's change."""
    found = evidence.also_found(item) if item else ()
    return [Sourced(f"Found in a run, too: {each.text}", f"findings/{key(each.id)}/text") for each in found]
