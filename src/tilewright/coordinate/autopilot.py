"""Finds autopilot's work: in the recommendations of an analysis, in the findings of a profile, or in the source.

Each of them becomes a work item, or is dismissed with its evidence. Items are ranked by `priority.ranked`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tilewright.coordinate.analysis import Analysis, level_of
from tilewright.coordinate.facts import kernels_in
from tilewright.coordinate.priority import EFFORT, ChangeRisk, WorkItem, item_of
from tilewright.coordinate.texts import read
from tilewright.errors import RequestError
from tilewright.ledger.agent_records import AgentChange, AgentFinding, AgentItem, AgentMeasurement, AgentParts
from tilewright.program.reading.reach import reached_modules
from tilewright.specialists import specialist_of
from tilewright.specialists.delegation import Delegation
from tilewright.specialists.proposal import NoProposal

if TYPE_CHECKING:
    from tilewright.profile.figures import Profile, ProfileFinding

MEASURES = "profiling"
"""The specialist that reads sources and profiles."""
AGAIN = "A"
"""The beginning of the ids of items that try a change again."""
IN_KERNELS = ("cuda.tile", "triton")
"""A file without these words contains no kernel."""


def items_of_analysis(analysis: Analysis, name: str) -> tuple[Sequence[WorkItem], Sequence[AgentFinding]]:
    """Returns a work item for each recommendation. A recommendation is dismissed if no specialist can follow it."""
    items = [item_of(each) for each in analysis.recommendations]
    dismissed = [
        AgentFinding(id=item.id, kind="recommendation", level=item.impact, text=item.text, evidence=name,
                     dismissed="no specialist answers it: it names no technique and no domain")
        for item in items if not item.specialists
    ]  # fmt: skip
    return [item for item in items if item.specialists], dismissed


def items_of_source(
    script: Path, question: str, constraints: tuple[str, ...] = (), context: str = ""
) -> Sequence[WorkItem]:
    """Returns an item for each change that can be applied to the source. Reads the program, and runs nothing."""
    delegation = Delegation(MEASURES, question, f"one step of {script.name}", ("latency",), file=str(script),
                            constraints=constraints, context=context)  # fmt: skip
    proposed = specialist_of(MEASURES).propose(delegation)
    if isinstance(proposed, NoProposal):
        return ()
    return [
        WorkItem(f"S{n}", f"{each.name}: {each.rationale} ({each.site.replace(f'{script.parent}/', '')})",
                 each.impact, effort="Low", risk=each.risk, specialists=(MEASURES,), change=each.name)
        for n, each in enumerate(proposed, 1)
    ]  # fmt: skip


def files_left_out(script: Path) -> Sequence[AgentFinding]:
    """Returns each file of the program that cannot be changed, such as one that is not UTF-8, with the reason."""
    closed = [each for each in reached_modules(script) if each.unreadable]
    return [
        AgentFinding(id=f"E{n}", kind="file", level="Low", text=module.path.name,
                     dismissed=module.unreadable.removeprefix(f"{module.path.name} is "), evidence=str(module.path))
        for n, module in enumerate(closed, 1)
    ]  # fmt: skip


def items_of_kernels(files: Iterable[Path], root: Path) -> Sequence[WorkItem]:
    """Returns an item for each language of the program's own kernels, with their places. Reads the program's files.

    root: the folder to which the places are relative.
    """
    found: dict[str, list[str]] = {}
    for path in files:
        text = read(path) or ""
        if any(word in text for word in IN_KERNELS):
            with suppress(RequestError):
                kernels = kernels_in(path)
                for language, names in kernels.languages.items():
                    places = (f"{name} ({os.path.relpath(path, root)}:{kernels.lines[name]})" for name in names)
                    found.setdefault(language, []).extend(places)
    return [
        WorkItem(f"K{n}", f"make the program's {language} kernels faster: {', '.join(names)}", "High", effort="High",
                 specialists=(language,))
        for n, (language, names) in enumerate(found.items(), 1)
    ]  # fmt: skip


def items_of_profile(
    profile: Profile, known: Iterable[AgentFinding], number: int, evidence: str
) -> tuple[Sequence[WorkItem], Sequence[AgentFinding]]:
    """Returns an item for each new kind of finding. If a kind already has an item, further findings of it are
    dismissed.

    known: the findings so far.
    number: the number of the first item.
    evidence: the id of the profile's measurement.
    """
    item_of_kind = {each.kind: each.item for each in known if each.item}
    items: list[WorkItem] = []
    others: list[AgentFinding] = []
    for finding in profile.findings:
        if finding.kind in item_of_kind:
            why = f"{item_of_kind[finding.kind]} answers this kind"
            others.append(finding_of(finding, "", evidence, dismissed=why))
            continue
        item = WorkItem(
            f"F{number + len(items)}", finding.advice, finding.level, effort=EFFORT.get(finding.specialist, "Medium"),
            specialists=tuple(dict.fromkeys((finding.specialist, MEASURES))), findings=(finding.id,), tag=finding.tag,
        )  # fmt: skip
        item_of_kind[finding.kind] = item.id
        items.append(item)
    return items, others


def finding_of(finding: ProfileFinding, item: str, evidence: str, *, dismissed: str = "") -> AgentFinding:
    """Returns the record of a profile's finding.

    item: the id of the item that the finding became; "" if it was dismissed for the reason ``dismissed``.
    """
    text = f"{finding.text}; in the source: {', '.join(finding.places)}" if finding.places else finding.text
    return AgentFinding(id=finding.id, kind=finding.kind, level=finding.level, text=text, item=item,
                        dismissed=dismissed, evidence=evidence)  # fmt: skip


def recommended(item: WorkItem) -> AgentFinding:
    """Returns the finding from which an item of the plan comes, for the ledger.

    Its kind is a recommendation, a place in the source, the program's kernels, or the question.
    """
    kind = {"R": "recommendation", "S": "site", "K": "kernels"}.get(item.id[0], "question")
    return AgentFinding(id=item.id, kind=kind, level=item.impact, text=item.text, item=item.id)


def item_again(stored: AgentItem) -> WorkItem:
    """Returns the work item of a stored item."""
    return WorkItem(
        stored.id, stored.text, level_of(stored.impact), level_of(stored.effort),
        risk_of(stored.risk), specialists=stored.specialists,
        findings=stored.findings, tag=stored.tag, change=stored.change,
    )  # fmt: skip


def risk_of(text: str) -> ChangeRisk:
    return next(each for each in get_args(ChangeRisk) if each == text)


def items_again(parts: AgentParts) -> list[tuple[AgentChange, WorkItem]]:
    """Returns the changes to try again, each with its item. They tied in their race, and another change was kept
    later."""
    again = {item.change for item in parts.items if item.id.startswith(AGAIN)}
    kept = [parts.changes.index(change) for change in parts.kept]
    tied = {each.change for each in parts.measurements if each.kind == "race" and each.verdict == "tied"}
    found = {
        change.name: change
        for change in parts.changes[: max(kept, default=0)]
        if change.id in tied and change.specialist == MEASURES and change.name not in again and change not in parts.kept
    }
    why = "again: with the changes kept since, the program may wait for something else"
    return [
        (change, WorkItem(f"{AGAIN}{n}", f"{change.name}, {why}", "Low", effort="Low", risk=risk_of(change.risk),
                          specialists=(change.specialist,), change=change.name))
        for n, change in enumerate(found.values(), 1 + len(again))
    ]  # fmt: skip


def measured(profile: Profile, about: str) -> AgentMeasurement:
    """Returns the numbers of a profile, for the ledger."""
    values = {
        f"{name}{f', {figure.unit}' if figure.unit else ''}, {gpu.label}": figure.value
        for gpu in profile.gpus for name, figure in gpu.figures.items() if figure.value is not None
    }  # fmt: skip
    worst = profile.bottleneck
    return AgentMeasurement(
        kind="profile", about=about, values=values, device=profile.gpus[0].board if profile.gpus else "",
        samples_us={"steps": profile.steps_us} if profile.steps_us else {},
        verdict=worst.kind if worst else "no finding", reason=worst.text if worst else "no number is beyond its limit",
        facts={"traces": [trace.digest for trace in profile.traces], "rung": str(profile.rung)},
    )  # fmt: skip


def ids_to_quote(item: WorkItem, last: Profile | None) -> tuple[str, ...]:
    """Returns the ids of the profile findings that a specialist is shown when it gets an item of the work.

    An item that comes from a finding quotes all findings of the same kind. An item for a place in the source quotes
    none. Any other item quotes all findings.

    last: the last profile of the program; None if there is none.
    """
    if last is None or item.change:
        return ()
    kinds = {finding.split("-", 1)[-1].rsplit("-gpu", 1)[0] for finding in item.findings}
    found = [each for each in last.findings if not kinds or each.kind in kinds]
    return tuple(each.id for each in found)
