"""Gives ``fused=True`` to torch's optimizers without ``fused``: one kernel for all parameters.

``foreach=False``, which selects a kernel for each parameter, is replaced. Other values of ``foreach`` are not changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.source.source_file import keywords

OPTIMIZERS = tuple(f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD"))
OTHER_WAYS = ("foreach", "capturable", "differentiable")


class FusedOptimizer(ProgramChange):
    name = "fused_optimizer"
    about = "updates all parameters in a few kernels instead of several for each parameter"
    words = ("fuse* optimizer", "optimizer fused", "fused adam*", "fused=true", "optimizer kernel", "multi tensor")
    findings = ("short-kernels", "launch-calls", "host-late")
    ran = (r"(?i)fused_(adam|sgd)|FusedAdam|FusedSgd",)
    gone = (r"(?i)_foreach_|multi_tensor_apply_kernel",)
    order = 30
    absent = "the program makes no Adam, AdamW or SGD of torch"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for call in module.calls(*OPTIMIZERS):
            given = keywords(call)
            if "fused" in given:
                continue
            try:
                slow = next((each for each in call.keywords if each.arg == "foreach" and _is_false(each.value)), None)
                if other := next(
                    (name for name in OTHER_WAYS if name in given and not (slow and name == slow.arg)), ""
                ):
                    raise NotSure(f"the optimizer has {other} already", call)
                if any(keyword.arg is None for keyword in call.keywords):
                    raise NotSure(
                        "the optimizer's arguments are in a dictionary, which may already set foreach or fused", call
                    )
                if any(_is_sparse(node) for node in module.file.every(ast.keyword)):
                    raise NotSure("the program has sparse gradients, which a fused optimizer does not take", call)
                kind = module.full(call.func).removeprefix("torch.optim.")
                edit = module.add_argument(call, "fused=True")
                if slow is not None:
                    edit = Edit(*module.span(slow), "fused=True")
                yield ChangeSite(call.lineno, kind, (edit,))
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def present(self, module: ReadModule) -> str:
        calls = (call for call in module.calls(*OPTIMIZERS) if "fused" in keywords(call))
        call = next(calls, None)
        return f"{module.place(call)} has an optimizer with the argument fused" if call else ""


def _is_sparse(node: ast.keyword) -> bool:
    return node.arg == "sparse" and not _is_false(node.value)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


CHANGE = FusedOptimizer()
