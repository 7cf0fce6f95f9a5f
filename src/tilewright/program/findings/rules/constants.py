"""Values that are computed again in each step, and never change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import VIEWS, Operation, RecordedRun

STEPS = 2
"""A value is constant if so many steps compute it, and no step another one at that line."""
MOST_OF_ALL = 0.5
"""If more of a step's time is constant, the program repeats one input as a benchmark does, and nothing is said."""


class Constants(FindingRule):
    name = "constant-in-each-step"
    about = "a value that never changes is computed again in each step"
    threshold = FindingThreshold(share=0.004, count=2)
    order = 30
    covers = ("made-on-host", "work-done-twice")

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        constant = _constant(run)
        step = run.scenes[0] if run.scenes else None
        if step is None:
            return
        moved = {each.ins[0] for each in step.events if each.kind == "moved"}
        found: dict[tuple[str, str], list[Operation]] = defaultdict(list)
        for each in step.operations:
            if each.lines and not each.via and each.number in constant and not (
                each.backward or _scalar(run, each) or _changed(run, each, constant)
            ):  # fmt: skip
                found[each.lines[0].file, each.lines[0].function].append(each)
        if self.weight(run, (each for group in found.values() for each in group)).time > MOST_OF_ALL:
            return
        for group in found.values():
            computed = [each for each in group if each.name not in VIEWS or each.name == "lift_fresh"]
            weight = self.weight(run, group)
            copied = any(value in moved for each in group for value in each.outs or each.ins)
            if computed and len(group) >= self.threshold.count and (copied or weight.most >= self.threshold.share):
                yield RunFinding(
                    self.name, lines_of(computed),
                    f"{len(group)} operations {'make on the host' if copied else 'compute'} the same constant values "
                    "again in each step",
                    "compute them once, on the device, and keep them: as a buffer of the module, or in a table",
                    weight.time, {"operations a step": len(group)},
                    ("cached_constants", "constants_once", "made_on_device"),
                )  # fmt: skip


def _scalar(run: RecordedRun, each: Operation) -> bool:
    return all(run.type_of(value).numel < 2 for value in each.outs or each.ins)


def _changed(run: RecordedRun, each: Operation, constant: set[int]) -> bool:
    """Whether something else than a constant is written to a result later."""
    writers = (writer for out in each.outs for writer in run.writers.get(run.origin(out), ()))
    return any(writer.number not in constant for writer in writers)


def _constant(run: RecordedRun) -> set[int]:
    """Returns the numbers of the values that all steps compute."""
    if len(run.steps) < STEPS:
        return set()
    parts = [{each.number for each in part.operations if not each.backward} for part in run.steps]
    return set.intersection(*parts)


RULE = Constants()
