"""Results that nothing uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import VIEWS, Operation, RecordedRun

STEPS = 3
"""A result is unused if the steps that are stored, at least so many, do not use it."""


class UnusedResults(FindingRule):
    name = "unused-result"
    about = "a result is computed in each step, and no step uses it"
    threshold = FindingThreshold(share=0.03)
    order = 70

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        if len(run.steps) < STEPS:
            return
        read = run.alive.union(value for part in run.stored for event in part.events for value in event.ins)
        found: dict[tuple[str, str], list[Operation]] = defaultdict(list)
        used = {each.alike for part in run.stored for each in part.operations if _used(run, each, read)}
        for each in run.scenes[0].operations:
            if each.lines and not each.via and not each.backward and each.alike not in used:
                found[each.lines[0].file, each.lines[0].function].append(each)
        for operations in found.values():
            weight = self.weight(run, operations)
            if weight.time >= self.threshold.share:
                yield RunFinding(
                    self.name, lines_of(operations), "a result is computed in each step, and no step uses it",
                    "leave it out, or compute it only where it is needed", weight.time,
                    {"operations a step": len(operations)},
                )  # fmt: skip


def _used(run: RecordedRun, each: Operation, read: frozenset[int]) -> bool:
    writes = each.name.partition(".")[0].endswith("_") or not each.outs
    return writes or each.name in VIEWS or any(out in run.consumers or out in read for out in each.outs)


RULE = UnusedResults()
