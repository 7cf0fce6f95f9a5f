"""Tensors that are made on the host in each step, and copied to the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import Line, RecordedCall, RecordedRun

FACTORIES = ("arange", "zeros", "ones", "full", "eye", "linspace", "tril", "triu", "zeros_like", "ones_like", "outer",
             "scalar_tensor", "fill", "tril_indices", "triu_indices")  # fmt: skip


class MadeOnHost(FindingRule):
    name = "made-on-host"
    about = "a tensor is made on the host in each step, and then copied to the device"
    threshold = FindingThreshold(count=1)
    order = 55

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        found: dict[Line, list[RecordedCall]] = defaultdict(list)
        for part in run.scenes[:1]:
            for each in part.events:
                if each.kind == "moved" and each.lines and not (each.moved or each.via) and _made(each, run):
                    found[each.lines[0]].append(each)
        for line, events in found.items():
            yield RunFinding(
                self.name, (line,), f"{len(events)} tensors a step are made on the host, and copied to the device",
                "make them on the device: give the device to the function that makes them", 0.0,
                {"times a step": len(events)}, ("made_on_device",),
            )  # fmt: skip


def _made(call: RecordedCall, run: RecordedRun) -> bool:
    """Whether the moved tensor was made in the same step, and not of data of the host."""
    made = run.maker(call.ins[0])
    fresh = made is not None and made.base in FACTORIES and made.part == call.part
    writers = run.writers.get(run.origin(call.ins[0]), ())
    return fresh and not any(_of_data(run, value) for writer in writers for value in writer.ins[1:2] or writer.ins)


def _of_data(run: RecordedRun, value: int, deep: int = 12) -> bool:
    """Whether a value is made of data from outside, and not only of ranges and constants."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < deep:
        made = run.producers.get(waiting.pop())
        if made is None or made.name == "lift_fresh":
            return True
        seen.add(made.at)
        waiting += made.ins
    return False


RULE = MadeOnHost()
