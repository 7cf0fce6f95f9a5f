"""Applies the rules to the record of a run. Of several findings at one place, one is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.plugins import plugins
from tilewright.program.findings.base import FindingRule, RunFinding
from tilewright.program.findings.record import RecordedRun

NEAR = 3
"""Findings of one rule at lines so near to each other have one cause."""


def finding_rules() -> tuple[FindingRule, ...]:
    """Returns all rules, sorted by their attribute ``order``."""
    found = plugins("tilewright.program.findings.rules", "RULE")
    return tuple(sorted(found, key=lambda each: (each.order, each.name)))


def findings_in(run: RecordedRun) -> tuple[RunFinding, ...]:
    """Returns the findings of all rules, those of the greatest share first. Their texts name the function."""
    covers = {rule.name: rule.covers for rule in finding_rules()}
    kept: list[RunFinding] = []
    for rule in finding_rules():
        for each in merged(rule.look(run)):
            if not any(each.rule in covers[other.rule] and other.meets(each) for other in kept):
                kept.append(each)
    kept = [replace(each, text=each.text + _where(each)) for each in kept]
    return tuple(sorted(kept, key=lambda each: (-each.share, each.place)))


def _where(finding: RunFinding) -> str:
    """Returns the functions of a finding's lines, in words; "" if all lines are outside of functions."""
    names = dict.fromkeys(each.function for each in finding.lines if each.function.isidentifier())
    return f", in {', '.join(names)}" if names else ""


def merged(findings: Iterable[RunFinding]) -> list[RunFinding]:
    """Returns the findings of one rule. Of those in one function that share a line, or say the same, one is left."""
    kept: list[RunFinding] = []
    for each in sorted(findings, key=lambda each: -each.share):
        same = next((n for n, other in enumerate(kept) if other.meets(each) or _alike(other, each)), None)
        if same is None:
            kept.append(each)
        else:
            kept[same] = replace(kept[same], lines=tuple(dict.fromkeys((*kept[same].lines, *each.lines))))
    return kept


def _alike(one: RunFinding, other: RunFinding) -> bool:
    return (
        one.place.file == other.place.file and one.place.function == other.place.function and one.advice == other.advice
        and min(abs(a.line - b.line) for a in one.lines for b in other.lines) <= NEAR
    )  # fmt: skip
