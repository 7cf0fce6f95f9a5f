"""Whole sorts of which a few values are used."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import RecordedRun

FEW = 0.25


class SortsForTheBest(FindingRule):
    name = "sort-for-a-few"
    about = "all values are sorted, and a few of them are used"
    threshold = FindingThreshold(share=0.003)
    order = 36

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            for each in part.operations:
                if each.base not in ("sort", "argsort") or each.backward or not each.outs:
                    continue
                users = [user for out in each.outs for user in run.consumers.get(out, ())]
                whole = run.numel_of(each)
                few = users and all(
                    user.name in ("slice.Tensor", "select.int") and run.numel_of(user) <= FEW * whole for user in users
                )
                alike = [one for one in part.operations if one.lines == each.lines and one.name == each.name]
                weight = self.weight(run, alike)
                if few and self.threshold.reached(weight.most, 1):
                    yield RunFinding(
                        self.name, lines_of((each,)), f"{whole} values are sorted, and few of them are used",
                        "call topk, which finds the best without a whole sort", weight.time, {"values": whole},
                    )  # fmt: skip


RULE = SortsForTheBest()
