"""Casts there and back, and copies that take much of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import Operation, RecordedRun

MUCH = 0.10
"""Copies of one function are a finding from this share of the time."""


class NeedlessCopies(FindingRule):
    name = "copy-in-each-step"
    about = "values are cast there and back, or copied, in each step"
    threshold = FindingThreshold(share=0.01)
    order = 85

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes[:1]:
            casts: dict[tuple[str, str], list[Operation]] = defaultdict(list)
            copies: dict[tuple[str, str], list[Operation]] = defaultdict(list)
            for each in part.operations:
                if each.backward or not each.lines or each.via:
                    continue
                place = each.lines[0].file, each.lines[0].function
                if _back(run, each):
                    casts[place].append(each)
                if each.name == "clone":
                    copies[place].append(each)
            yield from self._found(run, casts, "are casts to the type that the values had before", self.threshold.share)
            yield from self._found(run, copies, "are copies (clone, contiguous, reshape)", MUCH)

    def _found(
        self, run: RecordedRun, found: dict[tuple[str, str], list[Operation]], what: str, least: float
    ) -> Iterator[RunFinding]:
        for operations in found.values():
            weight = self.weight(run, operations)
            if weight.time >= least:
                yield RunFinding(
                    self.name, lines_of(operations), f"{len(operations)} operations a step {what}",
                    "keep one type and one layout through the step", weight.time,
                    {"operations a step": len(operations)},
                )  # fmt: skip


def _back(run: RecordedRun, each: Operation) -> bool:
    """Whether a cast undoes another one."""
    before = run.producers.get(each.ins[0]) if each.name == "_to_copy" and each.ins else None
    if before is None or before.name != "_to_copy" or not (before.ins and each.outs):
        return False
    types = [run.type_of(value).dtype for value in (before.ins[0], before.outs[0], each.outs[0])]
    return types[0] == types[2] != types[1]


RULE = NeedlessCopies()
