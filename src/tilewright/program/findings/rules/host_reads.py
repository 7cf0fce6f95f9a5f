"""Values that the host reads in each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import Line, RecordedCall, RecordedRun

CALLS = {"cpu": ".cpu()", "__bool__": "a condition", "__float__": "float()", "__int__": "int()",
         "__index__": "an index", "__format__": "a format", "__array__": "a NumPy function"}  # fmt: skip
MANY = 8
"""Outside of the steps, so many reads by one line are worth a finding."""
NORMS = ("linalg_vector_norm", "norm", "frobenius_norm")


class HostReads(FindingRule):
    name = "host-reads"
    about = "the host reads a value of the device in each step, and waits until the device has computed it"
    threshold = FindingThreshold(count=1)
    order = 60

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        trains = any(each.kind == "backward" for part in run.stored for each in part.events)
        found: dict[Line, dict[int, list[RecordedCall]]] = defaultdict(lambda: defaultdict(list))
        for part in run.stored:
            for each in part.events:
                if each.lines and each.kind in ("read", "sized") and each.moved and not each.via:
                    found[each.lines[0]][part.index].append(each)
        for line, by_part in found.items():
            if not trains and _results(by_part, run):
                continue
            count = self._count(run, by_part)
            if self.threshold.reached(0.0, count):
                some = next(iter(by_part.values()))
                yield self._finding(line, some, count, run)

    def _count(self, run: RecordedRun, by_part: dict[int, list[RecordedCall]]) -> float:
        """Returns how often the line reads in a step; of a line that no step has, how often where it runs."""
        steps = [part.index for part in run.steps]
        inside = [len(by_part.get(index, ())) for index in steps]
        if sum(inside):
            return sorted(inside)[len(inside) // 2]
        return max(len(each) if len(each) >= MANY else 0 for each in by_part.values())

    def _finding(self, line: Line, events: list[RecordedCall], count: float, run: RecordedRun) -> RunFinding:
        names = dict.fromkeys(CALLS.get(each.name, f".{each.name}()") for each in events)
        times = f"{count:g} values" if count != 1 else "a value"
        sized = any(each.kind == "sized" for each in events)
        what = f"the number of rows that {', '.join(names)} finds" if sized else f"{times} ({', '.join(names)})"
        made = [run.maker(each.ins[0]) for each in events if each.ins]
        norms = any(each is not None and each.base in NORMS for each in made)
        advice = "keep it on the device, add it up there, and read it once after some steps"
        if sized:
            advice = "compute with a mask of fixed size"
        elif norms:
            advice = "clip by torch.nn.utils.clip_grad_norm_: it takes all norms at once (foreach), and reads none"
        return RunFinding(
            self.name, (line,), f"the host reads {what} in each step, and waits for the device: a sync", advice,
            0.0, {"reads a step": count}, ("host_synchronisation", "repeated_reads", "late_prints", "element_reads"),
        )  # fmt: skip


def _results(by_part: dict[int, list[RecordedCall]], run: RecordedRun) -> bool:
    """Whether a program that only computes results reads one of them, as it must."""
    if any(each.kind == "sized" for events in by_part.values() for each in events):
        return False
    few = all(len({each.ins for each in events}) <= 2 for events in by_part.values())
    return few and any(run.type_of(each.ins[0]).numel > 1 for events in by_part.values() for each in events)


RULE = HostReads()
