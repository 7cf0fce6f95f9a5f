"""Recognises torch operations in each spelling: operator, function, method or layer."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.program.reading.layers import is_self, layer_call
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.numbers import axis
from tilewright.source.source_file import argument, keywords

Sign: TypeAlias = Literal["+", "-", "*", "/"]
SIGNS: dict[type, Sign] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
CALLED: dict[str, Sign] = {
    "add": "+", "sub": "-", "subtract": "-", "mul": "*", "multiply": "*", "div": "/", "divide": "/", "true_divide": "/",
}  # fmt: skip


@dataclass(frozen=True)
class MatrixProduct:
    """A matrix product. ``spec``: the three index strings of an einsum; else empty. ``axes``: the number of axes of the
    result, if known.
    """

    left: ast.expr
    right: ast.expr
    spec: tuple[str, ...] = ()
    axes: int | None = None


def operation(module: ReadModule, node: ast.AST | None) -> tuple[str, list[ast.expr]]:
    """Returns the name and the positional arguments of ``torch.name(x, …)``, ``F.name(x, …)`` or ``x.name(…)``.

    The name is empty for any other expression. The trailing underscore of an in-place method is kept.
    """
    if not isinstance(node, ast.Call) or any(isinstance(arg, ast.Starred) for arg in node.args):
        return "", []
    full = module.full(node.func)
    for prefix in ("torch.nn.functional.", "torch.Tensor.", "torch.special.", "torch."):
        if full.startswith(prefix) and "." not in full.removeprefix(prefix):
            first = keywords(node).get("input")
            return full.removeprefix(prefix), [first, *node.args] if first is not None else list(node.args)
    if full or not isinstance(node.func, ast.Attribute) or isinstance(node.func.value, ast.Constant):
        return "", []
    if is_self(module, node.func.value):
        return "", []  # a method or a layer of the user's module
    return node.func.attr, [node.func.value, *node.args]


def option(node: ast.AST, args: Sequence[ast.expr], place: int, *names: str) -> ast.expr | None:
    """Returns an argument after the tensor, by its index in ``args`` or by one of its names; None if it is missing."""
    if place < len(args):
        return args[place]
    given = keywords(node) if isinstance(node, ast.Call) else {}
    return next((given[name] for name in names if name in given), None)


def product(module: ReadModule, node: ast.AST) -> MatrixProduct | None:
    """Returns the parts of ``a @ b``, of matmul, bmm and of einsum with two operands; None for others."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return MatrixProduct(node.left, node.right)
    name, args = operation(module, node)
    if isinstance(node, ast.Call) and node.keywords:
        return None
    if name in ("matmul", "bmm") and len(args) == 2:
        return MatrixProduct(args[0], args[1], axes=3 if name == "bmm" else None)
    if name == "einsum" and len(args) == 3 and module.called(node) == "torch.einsum":
        text = args[0].value if isinstance(args[0], ast.Constant) else None
        if isinstance(text, str) and text.count(",") == 1 and text.count("->") == 1:
            inputs, output = text.replace(" ", "").split("->")
            left, right = inputs.split(",")
            axes = None if "." in text else len(output)
            return MatrixProduct(args[1], args[2], (left, right, output), axes)
    return None


def arithmetic(module: ReadModule, node: ast.AST) -> tuple[Sign, ast.expr, ast.expr] | None:
    """Returns the sign and both operands of a sum, difference, product or quotient, also if written as a method; else
    None.
    """
    if isinstance(node, ast.BinOp):
        sign = SIGNS.get(type(node.op))
        return (sign, node.left, node.right) if sign else None
    name, args = operation(module, node)
    sign = CALLED.get(name.rstrip("_"))
    if sign is None or len(args) != 2 or not isinstance(node, ast.Call) or node.keywords:
        return None
    return sign, args[0], args[1]


@dataclass(frozen=True)
class SoftmaxCall:
    """A softmax. ``dim`` and ``dtype`` are None if they are not given."""

    input: ast.expr
    dim: ast.expr | None
    dtype: ast.expr | None = None


def softmax(module: ReadModule, node: ast.AST) -> SoftmaxCall | None:
    """Returns the parts of a softmax; None for another expression."""
    name, args = operation(module, node)
    if name == "softmax" and args and isinstance(node, ast.Call):
        place = 3 if module.full(node.func).startswith("torch.nn.functional.") else 2
        return SoftmaxCall(args[0], option(node, args, 1, "dim", "axis"), option(node, args, place, "dtype"))
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        layer = layer_call(module, node.func) or node.func
        if isinstance(layer, ast.Call) and module.full(layer.func) == "torch.nn.Softmax":
            return SoftmaxCall(node.args[0], argument(layer, 0, "dim"))
    return None


def cast(module: ReadModule, node: ast.AST) -> ast.expr | None:
    """Returns the input of a conversion to a float type, or of a copy in another memory order; None for others.

    Conversions to float32 and to another tensor's type are included: they do not round values that a fused kernel keeps
    exact.
    """
    name, args = operation(module, node)
    if name in ("float", "contiguous") and len(args) == 1 and isinstance(node, ast.Call) and not node.keywords:
        return args[0]
    if name == "type_as" and len(args) == 2:
        return args[0]
    if name in ("to", "type") and len(args) == 2 and isinstance(node, ast.Call) and not node.keywords:
        kind = args[1]
        same = isinstance(kind, ast.Attribute) and kind.attr == "dtype"
        return args[0] if same or module.full(kind) in ("torch.float32", "torch.float") else None
    return None


def swapped_axes(module: ReadModule, node: ast.AST) -> tuple[ast.expr, tuple[int, ...]] | None:
    """Returns the tensor and the axes of a transposition: ``(-2, -1)`` for ``x.mT``, all axes for a permutation."""
    if isinstance(node, ast.Attribute) and node.attr in ("mT", "T") and not module.full(node):
        return node.value, (-2, -1)
    name, args = operation(module, node)
    if isinstance(node, ast.Call) and node.keywords:
        return None
    if name == "t" and len(args) == 1:
        return args[0], (-2, -1)
    if name in ("transpose", "swapaxes", "swapdims", "permute"):
        listed = args[1].elts if len(args) == 2 and isinstance(args[1], (ast.Tuple, ast.List)) else args[1:]
        axes = [axis(each) for each in listed]
        if axes and None not in axes and (name == "permute" or len(axes) == 2):
            known = tuple(each for each in axes if each is not None)
            return args[0], known if name != "permute" or len(known) > 2 else (-2, -1)
    return None


def swaps_last_two(axes: tuple[int, ...], count: int | None) -> bool:
    """Returns whether a transposition exchanges exactly the last two axes. ``count``: the number of axes, if known."""
    if len(axes) > 2:
        last = len(axes)
        return axes == (*range(last - 2), last - 1, last - 2)
    return set(axes) == {-2, -1} or (count is not None and {each % count for each in axes} == {count - 2, count - 1})
