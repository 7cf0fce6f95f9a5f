"""Runs the forward pass under ``torch.autocast`` with bfloat16. It loses precision, so the user must ask for it or
allow it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import assigned, block_of, last_change
from tilewright.program.reading.module import NotSure, ReadModule

PRESENT = ("torch.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast", "torch.amp.GradScaler")


class Bf16Autocast(ProgramChange):
    name = "bf16_autocast"
    about = "computes the products of the forward pass in bfloat16, on the tensor cores and with half of the traffic"
    risk = "lossy"
    words = ("bf16", "bfloat16", "mixed precision", "autocast", "amp", "half precision", "lower precision")
    findings = ("float32-products",)
    ran = (r"(?i)bf16|bfloat16",)
    gone = (r"(?i)sgemm|simt",)
    order = 42
    asked_only = True
    absent = "the program has no training step in one block: a loss from a model's outputs, and its backward pass"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        if self.present(module):
            return
        for statement in module.file.every(ast.Expr):
            match statement.value:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=loss), attr="backward")):
                    try:
                        yield _wrapped(module, loss, statement)
                    except NotSure as reason:
                        yield NearMiss(reason.line, reason.reason)

    def present(self, module: ReadModule) -> str:
        node = next((node for node in module.file.nodes if module.full(node) in PRESENT), None)
        return f"{module.place(node)} uses {module.full(node)}" if node is not None else ""


def _wrapped(module: ReadModule, loss: str, backward: ast.stmt) -> ChangeSite:
    last = last_change(module, loss, backward)
    value = assigned(last, loss)
    if last is None or value is None:
        raise NotSure("the loss is not assigned in the block of its backward pass", backward)
    first, waiting = last, [(value, last)]
    while waiting:
        node, at = waiting.pop()
        for name in (each.id for each in ast.walk(node) if isinstance(each, ast.Name)):
            change = last_change(module, name, at)
            inner = assigned(change, name)
            if change is not None and inner is not None and _is_forward(module, inner):
                first = min(first, change, key=lambda each: each.lineno)
                waiting.append((inner, change))
    block = block_of(module, last)
    wrapped = block[block.index(first) : block.index(last) + 1]
    if not any(_is_forward(module, part) for statement in wrapped for part in ast.walk(statement)):
        raise NotSure("no call of a model is seen in the block of the backward pass", backward)
    line = f'with {module.spelled("torch.autocast", last)}("cuda", dtype={module.spelled("torch.bfloat16", last)}):'
    return ChangeSite(first.lineno, "forward pass", module.wrap(wrapped, line), "products are rounded to bfloat16")


def _is_forward(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether a node may call a model or a method of it. False if the file shows that it calls a function of a
    package.
    """
    if not isinstance(node, ast.Call) or module.full(node.func) or module.is_builtin(node.func, "len", "print"):
        return False
    return isinstance(node.func, ast.Name) or (
        isinstance(node.func, ast.Attribute) and node.func.attr in ("model", "net")
    )


CHANGE = Bf16Autocast()
