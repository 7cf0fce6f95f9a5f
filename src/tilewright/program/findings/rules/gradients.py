"""Graphs for a backward pass that never comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding
from tilewright.program.findings.record import VIEWS, Line, Operation, RecordedPart, RecordedRun

FORWARD = ("forward", "__call__")
CUTS = ("detach", "argmax", "item", "_local_scalar_dense")
PRODUCTS = ("mm", "addmm", "bmm", "convolution", "matmul", "embedding", "mv", "dot")


class GradientsWithoutBackward(FindingRule):
    name = "gradients-without-backward"
    about = "results are recorded for a backward pass, and none follows"
    threshold = FindingThreshold(share=0.03, count=4)
    order = 15

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        reached = _reached(run)
        used: set[tuple[str, str]] = set()
        used_lines: set[Line] = set()
        for part in run.stored:
            for each in part.operations:
                if each.gradients and not reached.isdisjoint(each.outs):
                    used |= {(line.file, line.function) for line in each.lines}
                    used_lines |= set(each.lines)
        for part in run.scenes:
            yield from self._in(run, part, reached, used, used_lines)

    def _in(
        self, run: RecordedRun, part: RecordedPart, reached: set[int], used: set[tuple[str, str]], used_lines: set[Line]
    ) -> Iterator[RunFinding]:
        found: dict[tuple[str, str], list[tuple[Operation, Line]]] = defaultdict(list)
        for each in part.operations:
            computes = each.name not in VIEWS and each.base not in CUTS
            if each.gradients and not each.backward and computes and reached.isdisjoint(each.outs):
                line = _region(each.lines, used, used_lines)
                if line is not None:
                    found[line.file, line.function].append((each, line))
        for members in found.values():
            operations = [each for each, _ in members]
            weight = self.weight(run, operations)
            products = any(each.base in PRODUCTS for each in operations)
            if products and self.threshold.reached(weight.most, len(operations)):
                yield RunFinding(
                    self.name, (*sorted({line for _, line in members}), *_calls(members, used_lines)),
                    f"{len(operations)} operations are recorded for gradients, and no backward pass follows",
                    "run this part under torch.no_grad() or torch.inference_mode()", weight.time,
                    {"operations": len(operations)}, ("no_gradients", "unused_gradients"),
                )  # fmt: skip


def _calls(members: Sequence[tuple[Operation, Line]], used_lines: set[Line]) -> list[Line]:
    """Returns the lines that call the function of a finding, if a backward pass needs nothing of them."""
    callers = {each.lines[at] for each, line in members if (at := each.lines.index(line) + 1) < len(each.lines)}
    return sorted(callers - used_lines) if used_lines else []


def _region(lines: Sequence[Line], used: set[tuple[str, str]], used_lines: set[Line]) -> Line | None:
    """Returns the outermost line whose function has no operation that a backward pass needs."""
    outwards = [line for line in reversed(lines) if line.function != "<module>"] or list(lines[-1:])
    free = [line for line in outwards if (line.file, line.function) not in used]
    if free:
        calls = list(takewhile(lambda line: line.function not in FORWARD, free)) or free[:1]
        return calls[0] if used_lines else calls[min(1, len(calls) - 1)]  # a main function only calls another one
    return next((line for line in reversed(lines) if line not in used_lines), None)


def _reached(run: RecordedRun) -> set[int]:
    """Returns the values that a backward pass goes back to."""
    waiting = [value for part in run.stored for event in part.events if event.kind == "backward" for value in event.ins]
    reached: set[int] = set()
    while waiting:
        value = waiting.pop()
        if value in reached:
            continue
        reached.add(value)
        made = run.producers.get(value)
        if (
            made is not None
            and made.base not in CUTS
            and run.type_of(value).dtype.startswith(("float", "bfloat", "compl"))
        ):
            waiting += made.ins
    return reached


RULE = GradientsWithoutBackward()
