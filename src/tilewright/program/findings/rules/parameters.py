"""Loops over parameters: optimizers, averages, clipping and penalties by hand."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import RecordedRun
from tilewright.program.findings.repeated import Repeated, repeated
from tilewright.program.findings.rules.loops import over_parameters

NORMS = ("linalg_vector_norm", "norm", "sum", "pow")


class LoopsOverParameters(FindingRule):
    name = "loop-over-parameters"
    about = "a loop runs small operations on one parameter at a time"
    threshold = FindingThreshold(share=0.002, count=4)
    order = 26
    covers = ("loop-of-operations", "host-reads", "function-by-hand")

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            for each in repeated(run, part):
                weight = self.weight(run, each.operations)
                if self.threshold.reached(weight.most, each.passes) and over_parameters(each, run):
                    yield RunFinding(
                        self.name, each.lines,
                        f"a loop runs {len(each.operations)} operations in a step on one parameter at a time",
                        _advice(each), weight.time, {"operations a step": len(each.operations)},
                        ("foreach_parameters", "fused_optimizer"),
                    )  # fmt: skip


def _advice(each: Repeated) -> str:
    if any(one.base in NORMS for one in each.operations):
        return "compute the norm of all parameters by torch._foreach_norm, or use clip_grad_norm_ or weight_decay"
    return (
        "update all parameters at once: torch._foreach_ functions, a fused optimizer, or AveragedModel for an average"
    )


RULE = LoopsOverParameters()
