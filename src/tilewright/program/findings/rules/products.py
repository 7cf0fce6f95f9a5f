"""Products that a lookup or a matrix product does better: with ones and zeros, or broadcast and then added up."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.chains import behind, users_of
from tilewright.program.findings.record import VIEWS, Operation, RecordedRun

PRODUCTS = ("mm", "bmm", "addmm", "matmul")
SPREADS = (*VIEWS, "repeat", "expand")
GROWTH = 4
"""A broadcast product has at least so many times the elements of its larger input."""
LARGE = 4096


class RowsByProduct(FindingRule):
    name = "rows-by-product"
    about = "rows of a table are chosen by a product with ones and zeros"
    threshold = FindingThreshold(share=0.002)
    order = 22

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            for each in part.operations:
                if each.base in PRODUCTS and not each.backward and len(each.ins) > 1:
                    ones = next((path for value in each.ins[-2:] if (path := _ones(run, value))), ())
                    weight = self.weight(run, (*ones, each))
                    if ones and self.threshold.reached(weight.most, 1):
                        yield RunFinding(
                            self.name, lines_of((*ones, each)),
                            "rows of a table are chosen by a product with a one-hot matrix",
                            "index the table with the labels: embedding, gather or table[index]", weight.time,
                            {"operations": len(ones) + 1}, ("rows_by_index",),
                        )  # fmt: skip


def _ones(run: RecordedRun, value: int) -> tuple[Operation, ...]:
    """Returns the operations that made a matrix of ones and zeros."""
    if run.type_of(value).parameter or len(run.type_of(value).shape) < 2:
        return ()
    made = run.maker(value)
    if made is None or made.backward:
        return ()
    if made.base in ("scatter", "one_hot", "eq"):
        return (made,)
    return ()


class ReducedBroadcasts(FindingRule):
    name = "broadcast-then-reduced"
    about = "a product of all pairs is written to memory, and then added up"
    threshold = FindingThreshold(share=0.01)
    order = 45

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            for each in part.operations:
                if each.base not in ("mul", "sub") or each.backward or run.numel_of(each) < LARGE:
                    continue
                chain = self._reduced(run, each)
                weight = self.weight(run, chain)
                if chain and self.threshold.reached(weight.most, 1):
                    what = "a distance" if each.base == "sub" else "a product"
                    advice = (
                        "cdist, or products and norms" if each.base == "sub" else "a matrix product (matmul, einsum)"
                    )
                    yield RunFinding(
                        self.name, lines_of(chain),
                        f"{what} of all pairs is broadcast to {run.numel_of(each)} elements, and then added up",
                        f"use {advice}: it adds up without repeated copies or a broadcast in memory", weight.time,
                        {"elements": run.numel_of(each)},
                    )  # fmt: skip

    def _reduced(self, run: RecordedRun, each: Operation) -> tuple[Operation, ...]:
        if len(each.ins) < 2 or any(run.numel_of(each) < GROWTH * _smallest(run, value) for value in each.ins[:2]):
            return ()
        after = users_of(run, each)
        if each.base == "sub":
            after = tuple(more for one in after if one.base in ("pow", "mul", "abs") for more in users_of(run, one))
        sums = [one for one in after if one.base in ("sum", "linalg_vector_norm", "mean")]
        copies = [made for value in each.ins[:2] for made in behind(run, value, ("repeat",), 3)]
        return (*copies, each, sums[0]) if sums else ()


def _smallest(run: RecordedRun, value: int) -> int:
    """Returns the number of elements before a value was spread."""
    while (made := run.producers.get(value)) is not None and made.base in SPREADS and made.ins:
        value = made.ins[0]
    return run.type_of(value).numel


RULE = RowsByProduct()
