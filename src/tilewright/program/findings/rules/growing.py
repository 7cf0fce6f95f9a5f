"""Tensors that grow by a concatenation with their own earlier value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import Line, RecordedRun


class TensorsGrown(FindingRule):
    name = "growing-tensor"
    about = "a tensor grows by a concatenation with itself, so all of its earlier values are copied each time"
    threshold = FindingThreshold(count=3)
    order = 35

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        grown: dict[Line, int] = defaultdict(int)
        made: dict[int, Line] = {}
        for part in run.stored:
            for each in part.operations:
                if each.base != "cat" or not each.line or each.backward:
                    continue
                if any(made.get(run.origin(value)) == each.line for value in each.ins):
                    grown[each.line] += 1
                made[each.outs[0]] = each.line
        for line, times in grown.items():
            if self.threshold.reached(0.0, times):
                yield RunFinding(
                    self.name, (line,), f"a tensor grows by cat, {times} times: each copies all values before it",
                    "collect the pieces in a list and join them once, or write into a buffer (a cache) of full size",
                    0.0, {"times": times}, ("growing_tensors",),
                )  # fmt: skip


RULE = TensorsGrown()
