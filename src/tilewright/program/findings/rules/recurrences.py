"""Recurrent cells by hand: a loop over time of small operations, each of which needs the pass before."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import RecordedRun
from tilewright.program.findings.repeated import Repeated, repeated

GATES = ("sigmoid", "tanh")
MOST_ALONE = 0.5


class RecurrentCells(FindingRule):
    name = "cell-by-hand"
    about = "a recurrent cell is a chain of small operations that runs once for each step of time"
    threshold = FindingThreshold(share=0.05, count=8)
    order = 25
    covers = ("loop-of-operations",)

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            for each in repeated(run, part):
                gates = [one for one in each.operations if one.base in GATES and not one.via]
                weight = self.weight(run, each.operations)
                if self.threshold.reached(weight.most, each.times) and self._cell(each, len(gates)):
                    yield RunFinding(
                        self.name, lines_of(gates),
                        f"a recurrent cell by hand runs {len(each.operations)} small operations a step",
                        "compile the cell (torch.compile), which fuses its gates, or use torch.nn.LSTM or GRU",
                        weight.time, {"operations a step": len(each.operations), "times a step": each.times},
                        ("compiled_function", "compiled_model"),
                    )  # fmt: skip

    def _cell(self, each: Repeated, gates: int) -> bool:
        """Whether each pass has gates, and needs the pass before."""
        return gates >= each.times and len(each.independent) < MOST_ALONE * len(each.operations)


RULE = RecurrentCells()
