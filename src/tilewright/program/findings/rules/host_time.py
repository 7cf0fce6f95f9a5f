"""Time of the host outside of torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import Line, RecordedRun

STEPS = 3
RECORDED_US = 50.0
"""The time in µs that the host may spend at a line for each operation, with the recording; a rough limit."""
LEAST_US = 500.0
"""Less time a step is not worth a finding."""


class HostTime(FindingRule):
    name = "host-time"
    about = "the host spends much of a step outside of torch, while no operation runs"
    threshold = FindingThreshold(share=0.20)
    order = 90

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        by_line: dict[Line, list[float]] = defaultdict(list)
        for part in run.steps:
            mine: Counter[Line] = Counter()
            for lines, us in part.host:
                mine.update({lines[0]: us} if lines else {})
            for line, us in mine.items():
                by_line[line].append(us)
        if len(run.steps) < STEPS:
            return
        calls = Counter(each.lines[0] for each in run.scenes[0].operations if each.lines)
        usual = {line: median([*us, *[0.0] * (len(run.steps) - len(us))]) for line, us in by_line.items()}
        whole = run.step_us + sum(usual.values())
        for line, us in usual.items():
            own = us - RECORDED_US * calls[line]
            if own >= LEAST_US and own >= us / 2 and us / whole >= self.threshold.share:
                yield RunFinding(
                    self.name, (line,), f"the host spends {us / 1e3:.3g} ms a step here, outside of torch",
                    "do it once before the loop, in workers that prepare the next batch, or for a whole batch at once",
                    us / whole, {"ms a step": us / 1e3}, ("loader_workers",),
                )  # fmt: skip


RULE = HostTime()
