"""Turns the findings of a recorded run into items, or adds them to the items whose changes mend them.

An item without a change is not tried: it shows where the time goes, and what to do, and needs a proposer. Such items
end last, because a change that was kept for another item may have rewritten their lines.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.coordinate.priority import WorkItem
from tilewright.ledger.agent_records import AgentChange, AgentEnd, AgentFinding, AgentItem, AgentMeasurement
from tilewright.profile.figures import percent
from tilewright.profile.findings import level
from tilewright.program.findings.base import RunFinding
from tilewright.program.findings.mending import Sites

FOUND = "O"
"""The beginning of the ids of items that a recorded run gave."""
SAME_CAUSE: Mapping[str, str] = {"host-reads": "host-sync"}
"""Rule → the kind of a profile's finding that has the same cause."""
PLACE = re.compile(r"\(([^()]+):(\d+)(?: to (\d+))?(?:, [^()]*)?\)$")
"""The file and lines at the end of the text of a finding, as `items_of_run` writes them."""
NEEDS_PROPOSER = "needs a proposer: no change of a program is known to be right at this place"


def place_of(finding: RunFinding, root: Path, script: Path) -> str:
    """Returns the place of a finding, such as ``model.py:43`` or ``model.py:43 to 47``."""
    first = finding.place
    last = max(line.line for line in finding.lines if line.file == first.file and line.function == first.function)
    file = os.path.relpath(root / first.file, script.parent)
    return f"{file}:{first.line}" + (f" to {last}" if last > first.line else "")


def measured(findings: Sequence[RunFinding], places: Sequence[str], about: str, device: str) -> AgentMeasurement:
    """Returns the figures of the findings, for the ledger."""
    values: dict[str, float] = {}
    for n, (each, place) in enumerate(zip(findings, places, strict=True), 1):
        values[f"{FOUND}{n}, {each.rule} at {place}, share of the step"] = each.share
        values |= {f"{FOUND}{n}, {each.rule} at {place}, {name}": value for name, value in each.figures.items()}
    return AgentMeasurement(kind="record", about=about, values=values, device=device,
                            verdict=f"{len(findings)} findings" if findings else "no finding")  # fmt: skip


def items_of_run(
    findings: Sequence[RunFinding], places: Sequence[str], sites: Sites, items: Iterable[AgentItem],
    known: Iterable[AgentFinding], evidence: str,
) -> tuple[Sequence[WorkItem], Sequence[AgentFinding]]:  # fmt: skip
    """Returns new items, and the record of each finding with the item that it belongs to.

    sites: the lines at which changes have sites.
    items, known: the items and findings so far.
    evidence: the id of the measurement of the findings.
    """
    of_change = {item.change: item.id for item in items if item.change}
    known = tuple(known)
    new: list[WorkItem] = []
    found: list[AgentFinding] = []
    for n, (each, place) in enumerate(zip(findings, places, strict=True), 1):
        id, impact = f"{FOUND}{n}", level(each.share)
        share = f", {percent(each.share)} of the step's time" if each.share >= 0.001 else ""
        text = f"{each.text} ({place}{share})"
        item = _item_for(each, place, sites, of_change, known) or id
        if item == id:
            new.append(WorkItem(id, f"{text}: {each.advice}", impact, effort="High", specialists=("profiling",),
                                findings=(id,)))  # fmt: skip
        found.append(AgentFinding(id=id, kind=each.rule, level=impact, text=text, item=item, evidence=evidence))
    return new, found


def _item_for(
    finding: RunFinding, place: str, sites: Sites, of_change: Mapping[str, str], known: Sequence[AgentFinding]
) -> str:
    """Returns the item of a change that mends the place, or of a profile's finding with the same cause; else ""."""
    for name in finding.changes:
        if name in of_change and not sites.get(name, frozenset()).isdisjoint(finding.at):
            return of_change[name]
    kind, first = SAME_CAUSE.get(finding.rule), place.partition(" ")[0]
    same = (each.item for each in known if kind and each.kind == kind and f"{first} " in f"{each.text} ")
    return next(same, "")


def untried(item: WorkItem, finding: AgentFinding, kept: Sequence[AgentChange], script: Path) -> AgentEnd:
    """Returns the end of an item that no change answers.

    kept: the changes that were kept since the run was recorded, in their order.
    """
    end = AgentEnd(item=item.id, status="remaining", why="blocked", reason=NEEDS_PROPOSER, evidence=finding.evidence)
    if (change := _rewritten(finding, kept, script)) is None:
        return end
    return replace(end, why="mechanism already present", reason=f"{change.id} {change.name} has rewritten these lines")


def _rewritten(finding: AgentFinding, kept: Sequence[AgentChange], script: Path) -> AgentChange | None:
    """Returns the kept change after which no line of the finding's place is as it was recorded; None if there is none,
    or if the text does not show the place (a file's name may have parentheses)."""
    if (place := PLACE.search(finding.text)) is None:
        return None
    file, first, last = place.groups()
    path, lines = str((script.parent / file).resolve()), range(int(first) - 1, int(last or first))
    changes = [(change, each) for change in kept for each in change.texts if str(Path(each).resolve()) == path]
    for change, name in changes:
        recorded, now = changes[0][0].before.get(name, ""), change.texts[name]
        same = difflib.SequenceMatcher(None, recorded.splitlines(), now.splitlines(), autojunk=False)
        if not any(one.a <= line < one.a + one.size for one in same.get_matching_blocks() for line in lines):
            return change
    return None
