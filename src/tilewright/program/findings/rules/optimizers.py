"""Optimizers that are told to update one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import RecordedRun


class SingleTensorOptimizers(FindingRule):
    name = "optimizer-one-by-one"
    about = "an optimizer is told to update one parameter at a time"
    threshold = FindingThreshold(share=0.005)
    order = 42

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        made = [each for part in run.parts for each in part.events if each.kind == "single-tensor" and each.lines]
        step = run.scenes[0].operations if run.scenes else ()
        updates = [each for each in step if each.via.startswith("_single_tensor")]
        weight = self.weight(run, updates)
        if made and self.threshold.reached(weight.most, len(updates)):
            yield RunFinding(
                self.name, tuple(dict.fromkeys(each.lines[0] for each in made)),
                f"the optimizer updates one parameter at a time, in {len(updates)} operations a step",
                "leave out foreach=False, or pass fused=True", weight.time, {"operations a step": len(updates)},
                ("fused_optimizer",),
            )  # fmt: skip


RULE = SingleTensorOptimizers()
