"""Sums of losses that keep the graphs of all steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import Line, RecordedRun


class KeptGraphs(FindingRule):
    name = "graph-kept"
    about = "a sum over steps keeps the graph of each step, because its values are not detached"
    threshold = FindingThreshold(count=2)
    order = 16

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        found: Counter[Line] = Counter()
        for part in run.stored:
            for each in part.operations:
                if each.base != "add" or not each.gradients or each.backward or not each.lines:
                    continue
                before = (run.producers.get(value) for value in each.ins)
                if any(one and one.line == each.line and one.part < each.part and one.gradients for one in before):
                    found[each.lines[0]] += 1
        for line, times in found.items():
            if times >= self.threshold.count:
                yield RunFinding(
                    self.name, (line,), "a sum over steps keeps the gradients' graph and memory of each step",
                    "add up loss.detach()", 0.0, {"steps": times}, ("unused_gradients",),
                )  # fmt: skip


RULE = KeptGraphs()
