"""Loops that run the same operations on one row, one head or one sample at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import PURE_VIEWS, VIEWS, RecordedRun
from tilewright.program.findings.repeated import Repeated, repeated

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
FEW = 4
"""Fewer passes are a finding only if they use no parameters: three products with different weights are usual."""
HALF = 0.5
"""At least so much of a loop's time must be in operations that do not depend on the pass before."""


class LoopsOverRows(FindingRule):
    name = "loop-of-operations"
    about = "a loop runs the same operations on one part of a batch at a time"
    threshold = FindingThreshold(share=0.003, count=3)
    order = 28
    covers = ("host-reads", "made-on-host", "constant-in-each-step")

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            for each in repeated(run, part):
                weight = self.weight(run, each.operations)
                if self.threshold.reached(weight.most, each.passes) and not _left_out(each, run):
                    alone = sum(one.cost for one in each.independent) / max(1e-9, _computing(each))
                    if alone >= HALF:
                        yield RunFinding(
                            self.name, each.lines,
                            f"a loop runs {len(each.operations)} operations in a step, {each.passes} times the same "
                            "ones on another row or slice",
                            "compute all passes together: index, stack or reshape the batch first (gather, unfold, "
                            "broadcast, one batched product), then run each operation once",
                            weight.time, {"passes a step": each.passes, "operations a step": len(each.operations)},
                            ("rows_together", "counts_at_once", "filled_on_host"),
                        )  # fmt: skip


def _left_out(each: Repeated, run: RecordedRun) -> bool:
    few = each.passes < FEW and _weights(each, run)
    return few or _again(each, run) or over_parameters(each, run)


def _weights(each: Repeated, run: RecordedRun) -> bool:
    return any(run.type_of(run.origin(value)).parameter for one in each.operations for value in one.ins)


def _computing(each: Repeated) -> float:
    return sum(one.cost for one in each.operations if one.name not in PURE_VIEWS)


def _again(each: Repeated, run: RecordedRun) -> bool:
    """Whether most of a loop runs elsewhere in the steps, too: then it evaluates a model, batch by batch."""
    inside = {id(one) for one in each.operations}
    elsewhere = {one.lines[0] for part in run.steps for one in part.operations if one.lines and id(one) not in inside}
    lines = [one.us for one in each.operations if one.lines[0] in elsewhere and one.lines[0] not in each.lines]
    return 2 * sum(lines) > sum(one.us for one in each.operations)


def over_parameters(each: Repeated, run: RecordedRun) -> bool:
    """Whether the passes of a loop are over parameters, or over tensors with their shapes."""
    shapes = {kind.shape for kind in run.types if kind.parameter}
    computing = [one for one in each.operations if one.ins and one.outs and one.name not in VIEWS]
    mine = [one for one in computing if run.type_of(one.ins[0]).shape in shapes]
    different = {run.type_of(one.ins[0]).shape for one in mine}
    return len(different) > 2 and 3 * len(mine) >= len(computing) and not any(one.base in PRODUCTS for one in computing)


RULE = LoopsOverRows()
