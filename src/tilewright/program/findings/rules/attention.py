"""Attention by hand: a product, a softmax of it, and a product of that."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.findings.base import FindingRule, FindingThreshold, RunFinding, lines_of
from tilewright.program.findings.record import Operation, RecordedRun

PRODUCTS = ("bmm", "mm", "baddbmm", "matmul")
SOFTMAX = ("_softmax", "_safe_softmax")
BETWEEN = ("mul", "div", "add", "sub", "where", "masked_fill", "native_dropout", "dropout", "index_put", "copy", "exp",
           "rsub", "clamp", "sum", "nan_to_num")  # fmt: skip
"""Operations that scale, mask or drop scores."""
LIBRARY = ("multi_head_attention_forward", "_native_multi_head_attention", "scaled_dot_product_attention")
MOST = 12
"""The most operations between a product and the softmax."""


class AttentionByHand(FindingRule):
    name = "attention-by-hand"
    about = "attention is computed as a product, a softmax and a product, with all scores in memory"
    threshold = FindingThreshold(share=0.001)
    order = 10
    covers = ("function-by-hand", "loop-of-operations", "broadcast-then-reduced", "rows-by-product")

    def look(self, run: RecordedRun) -> Iterator[RunFinding]:
        for part in run.scenes:
            found: dict[tuple[object, ...], list[Operation]] = {}
            for each in part.operations:
                if not each.backward and _is_softmax(each, run) and each.via not in LIBRARY:
                    group = _attention(each, run)
                    if group:
                        found.setdefault(lines_of(group), []).extend(group)
            for operations in found.values():
                weight = self.weight(run, operations)
                times = sum(_is_softmax(each, run) for each in operations)
                if self.threshold.reached(weight.most, times):
                    yield RunFinding(
                        self.name, lines_of(operations),
                        f"attention by hand runs {times} times: the scores are written and read as a whole",
                        "call scaled_dot_product_attention (flash attention), for all heads at once",
                        weight.time, {"times": times}, ("scaled_dot_product_attention",),
                    )  # fmt: skip


def _is_softmax(each: Operation, run: RecordedRun) -> bool:
    """Whether an operation is a softmax, or the division of an exponential by its sum."""
    if each.base in SOFTMAX:
        return True
    if each.base != "div" or len(each.ins) < 2:
        return False
    top, bottom = (run.maker(value) for value in each.ins[:2])
    return bool(top and bottom and top.base == "exp" and bottom.base == "sum" and run.origin(each.ins[0]) in bottom.ins)


def _attention(softmax: Operation, run: RecordedRun) -> tuple[Operation, ...]:
    """Returns the operations of one attention around a softmax; nothing if there is none."""
    before = _back(softmax, run)
    after = _forward(softmax, run) if before else ()
    if not (before and after):
        return ()
    products = [each for each in (*before, *after) if each.base in PRODUCTS]
    one_line = len({each.line for each in (*before, *after)}) == 1
    if any(each.via in LIBRARY for each in products) or (one_line and softmax.base == "_safe_softmax"):
        return ()
    return (*before, softmax, *after)


def _back(softmax: Operation, run: RecordedRun) -> tuple[Operation, ...]:
    """Follows the scores back to the product of two values that are no parameters."""
    reached, waiting = list[Operation](), list(softmax.ins[:1])
    for _ in range(MOST):
        if not waiting:
            return ()
        made = run.maker(waiting.pop(0))
        if made is None:
            continue
        if made.base in PRODUCTS:
            return (made, *reached) if not any(_parameter(value, run) for value in made.ins) else ()
        if made.base in BETWEEN:
            reached.append(made)
            waiting += made.ins
    return ()


def _forward(softmax: Operation, run: RecordedRun) -> tuple[Operation, ...]:
    reached, waiting = list[Operation](), list(softmax.outs[:1])
    for _ in range(MOST):
        if not waiting:
            return ()
        for user in run.users(waiting.pop(0)):
            if user.base in PRODUCTS and not user.backward:
                return (*reached, user) if not any(_parameter(value, run) for value in user.ins) else ()
            if user.base in BETWEEN and not user.backward:
                reached.append(user)
                waiting += user.outs[:1]
    return ()


def _parameter(value: int, run: RecordedRun) -> bool:
    return run.type_of(run.origin(value)).parameter


RULE = AttentionByHand()
