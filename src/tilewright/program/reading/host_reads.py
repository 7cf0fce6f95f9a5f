"""Finds where the host reads a value of a tensor in a loop: ``loss.item()``, ``float(loss)``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.operations import operation

Loop: TypeAlias = ast.For | ast.While | ast.AsyncFor
NumberKind: TypeAlias = Literal["float", "int"]
FLOAT_RESULTS = ("mean", "cross_entropy", "mse_loss", "nll_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
                 "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")  # fmt: skip
COUNTED = ("eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf")


@dataclass(frozen=True)
class HostRead:
    """A call that makes the host wait for a tensor's value, and the expression of the tensor."""

    call: ast.Call
    tensor: ast.expr
    tail: str = "item()"
    """The method call that reads the same value from the tensor later."""


def host_read(module: ReadModule, call: ast.Call) -> HostRead | None:
    """Returns the read that a call is; None for another call."""
    if (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "item"
        and not call.args
        and not module.full(call.func)
    ):
        return HostRead(call, _bare(call.func.value))
    match call:
        case ast.Call(func=ast.Attribute(value=value, attr="numpy" | "tolist" as last), args=[], keywords=[]):
            if _has_backward(module, value):
                return HostRead(call, _bare(value), "cpu().numpy()" if last == "numpy" else "tolist()")
    if module.is_builtin(call.func, "float") and len(call.args) == 1 and _has_backward(module, call.args[0]):
        return HostRead(call, _bare(call.args[0]))
    return None


def _bare(node: ast.expr) -> ast.expr:
    """Returns an expression without ``.detach()``, ``.cpu()`` and ``.data``."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inside, attr="detach" | "cpu"), args=[], keywords=[]):
                node = inside
            case ast.Attribute(value=inside, attr="data"):
                node = inside
            case _:
                return node


def in_loop(module: ReadModule, node: ast.AST) -> Loop | None:
    """Returns the innermost loop of the same function around a node."""
    child = node
    for each in module.above(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            return None
        if isinstance(each, (ast.For, ast.While, ast.AsyncFor)) and child in each.body:
            return each
        child = each
    return None


def _has_backward(module: ReadModule, node: ast.expr) -> bool:
    """Returns whether the function calls ``node.backward()``: then the node is a tensor of floats."""
    text = module.code(_bare(node))
    scope = module.file.scope(node)
    return any(
        isinstance(each.func, ast.Attribute) and each.func.attr == "backward" and module.code(each.func.value) == text
        for each in ast.walk(scope)
        if isinstance(each, ast.Call)
    )


def kind_of(module: ReadModule, tensor: ast.expr, loop: ast.stmt) -> NumberKind:
    """Returns whether a tensor holds a float or a count. Raises NotSure if the text does not show it."""
    if _has_backward(module, tensor):
        return "float"
    values = list(module.file.values(tensor)) if isinstance(tensor, ast.Name) else [tensor]
    kinds = {_kind(module, value) for value in values}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind
    raise NotSure(f"the text does not show whether {module.code(tensor)} is a float or a count", tensor)


def _kind(module: ReadModule, node: ast.AST) -> NumberKind | None:
    name, args = operation(module, node)
    if name in FLOAT_RESULTS:
        return "float"
    if isinstance(node, ast.Call):
        made = module.file.value(node.func)
        if module.called(made).startswith("torch.nn.") and module.called(made).endswith("Loss"):
            return "float"
    if name == "sum" and len(args) == 1:
        inner = args[0]
        inside = operation(module, inner)[0]
        if isinstance(inner, ast.Compare) or inside in COUNTED:
            return "int"
        if inside in ("float", "double"):
            return "float"
    return None
