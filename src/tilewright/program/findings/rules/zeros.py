"""Gradients that are filled with zeros in each step."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import RecordedRun


class FilledGradients(FindingRule):
    name = "gradients-filled-with-zeros"
    about = "all gradients are filled with zeros in each step"
    threshold = FindingThreshold(count=2)
    order = 65

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes[:1]:
            filled = [
                each for each in part.operations if each.base in ("zero", "_foreach_zero") and each.via == "zero_grad"
            ]
            if filled:
                yield RunFinding(
                    self.name, lines_of(filled), "zero_grad fills all gradients with zeros in each step",
                    "call zero_grad(set_to_none=True), which is the default", self.weight(run, filled).time,
                    {"operations a step": len(filled)}, ("gradients_to_none",),
                )  # fmt: skip


RULE = FilledGradients()
