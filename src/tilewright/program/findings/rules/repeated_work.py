"""The same operation on the same values, more than once in a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import VIEWS, Operation, RecordedRun


class WorkDoneTwice(FindingRule):
    name = "work-done-twice"
    about = "a step computes the same result of the same values more than once"
    threshold = FindingThreshold(share=0.02)
    order = 48

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes[:1]:
            first: dict[int, Operation] = {}
            again: dict[tuple[str, str], list[Operation]] = defaultdict(list)
            for each in part.operations:
                if each.backward or not each.lines or not each.ins or each.name in VIEWS or _writes(run, each):
                    continue
                if first.setdefault(each.number, each) is not each:
                    again[each.lines[0].file, each.lines[0].function].append(each)
            for operations in again.values():
                weight = self.weight(run, operations)
                if weight.time >= self.threshold.share:
                    yield RunFinding(
                        self.name, lines_of(operations),
                        f"{len(operations)} operations a step compute again what the same step has computed",
                        "keep the first result, and use it again", weight.time,
                        {"operations a step": len(operations)},
                    )  # fmt: skip


def _writes(run: RecordedRun, each: Operation) -> bool:
    """Whether an operation writes to its input, or its result is written to later."""
    return each.name.partition(".")[0].endswith("_") or any(run.origin(out) in run.writers for out in each.outs)


RULE = WorkDoneTwice()
