"""Norms, activations and losses by hand: chains of operations on elements for which torch has one function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.chains import named_chains
from tilewright.program.findings.record import Operation, RecordedRun

CALLS = {
    "layer norm": "torch.nn.functional.layer_norm",
    "group norm": "torch.nn.functional.group_norm, or layer_norm",
    "batch norm": "torch.nn.functional.batch_norm",
    "RMS norm": "torch.nn.functional.rms_norm",
    "cosine": "torch.nn.functional.cosine_similarity",
    "softmax": "torch.softmax",
    "sigmoid": "torch.sigmoid",
    "SiLU": "torch.nn.functional.silu",
    "GELU": "torch.nn.functional.gelu",
    "log of a softmax": "torch.log_softmax, or torch.nn.functional.cross_entropy",
    "cross entropy": "torch.nn.functional.cross_entropy, which also smooths labels",
    "binary cross entropy": "torch.nn.functional.binary_cross_entropy_with_logits",
}
"""What a chain computes → the function for it."""


class ChainsByHand(FindingRule):
    name = "function-by-hand"
    about = "a norm, an activation or a loss is a chain of operations, each of which reads and writes all elements"
    threshold = FindingThreshold(share=0.002)
    order = 20
    covers = ("rows-by-product", "broadcast-then-reduced", "loop-of-operations")

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            found: dict[tuple[str, str, str], list[Operation]] = defaultdict(list)
            for each in part.operations:
                if each.backward or not each.lines:
                    continue
                for name, chain in named_chains(each, run):
                    place = chain[-1].lines[0]
                    found[name, place.file, place.function].extend(chain)
            for (name, *_), operations in found.items():
                yield from self._finding(run, name, list(dict.fromkeys(operations)))

    def _finding(self, run: RecordedRun, name: str, operations: list[Operation]) -> Iterator[RunFinding]:
        weight = self.weight(run, operations)
        if self.threshold.reached(weight.most, len(operations)):
            yield RunFinding(
                self.name, lines_of(operations), f"{name} by hand takes {len(operations)} operations in a step",
                f"call {CALLS[name]}", weight.time, {"operations a step": len(operations)},
                ("functions_by_hand", "cross_entropy_by_hand"),
            )  # fmt: skip


RULE = ChainsByHand()
