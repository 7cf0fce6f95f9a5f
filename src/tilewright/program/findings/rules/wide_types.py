"""Operations in float64."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import Operation, RecordedRun

LARGE = 256
"""Smaller results are left out."""


class WideTypes(FindingRule):
    name = "wide-type"
    about = "a step computes in float64"
    threshold = FindingThreshold(share=0.05)
    order = 80

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        found: dict[tuple[str, str], list[Operation]] = defaultdict(list)
        for part in run.scenes[:1]:
            for each in part.operations:
                wide = each.outs and run.type_of(each.outs[0]).dtype in ("float64", "complex128")
                if wide and each.lines and not each.backward and run.numel_of(each) >= LARGE:
                    found[each.lines[0].file, each.lines[0].function].append(each)
        for operations in found.values():
            weight = self.weight(run, operations)
            if weight.time >= self.threshold.share:
                yield RunFinding(
                    self.name, lines_of(operations), f"{len(operations)} operations a step compute in float64",
                    "convert the data to float32 once, where that is precise enough", weight.time,
                    {"operations a step": len(operations)},
                )  # fmt: skip


RULE = WideTypes()
