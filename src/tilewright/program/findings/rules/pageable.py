"""Batches that are copied to the GPU from pageable memory."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import Line, RecordedRun

LARGE = 1 << 14
"""Copies of fewer elements are left out."""


class PageableCopies(FindingRule):
    name = "pageable-copy"
    about = "a batch is copied to the GPU from pageable memory in each step, and the host waits for the copy"
    threshold = FindingThreshold(count=1)
    order = 75

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        found: dict[Line, list[int]] = {}
        for part in run.scenes[:1]:
            for each in part.events:
                elements = run.type_of(each.ins[0]).numel if each.ins else 0
                if each.name == "pageable" and each.lines and not each.via and elements >= LARGE:
                    found.setdefault(each.lines[0], []).append(elements)
        for line, copies in found.items():
            yield RunFinding(
                self.name, (line,), f"{len(copies)} batches a step are copied from pageable memory",
                "pin the memory (pin_memory), and copy with non_blocking=True", 0.0,
                {"copies a step": len(copies), "elements": max(copies)}, ("pinned_copies",),
            )  # fmt: skip


RULE = PageableCopies()
