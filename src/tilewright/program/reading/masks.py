"""Finds masks that are provably causal. Such a mask has True or minus infinity in all places above the main diagonal
and in no others, or the reverse.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tilewright.program.reading.flow import assigned, last_change
from tilewright.program.reading.layers import settings
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.numbers import axis, number_value
from tilewright.program.reading.operations import operation, option
from tilewright.source.source_file import keywords

Half: TypeAlias = Literal["lower", "upper"]
DEPTH = 10


@dataclass(frozen=True)
class Triangle:
    """A tensor with ``value`` in one triangle of its last two axes, and zero in the other.

    The lower triangle includes the main diagonal; the upper one does not. ``axes``: how many axes the tensor has.
    """

    half: Half
    value: float
    axes: int


def triangle(module: ReadModule, node: ast.AST | None, at: ast.stmt, depth: int = DEPTH) -> Triangle | None:
    """Returns the triangle that an expression provably equals; None if no triangle is proven.

    at: the statement that evaluates the expression.
    """
    if depth == 0 or node is None:
        return None
    if isinstance(node, ast.Name):
        change = last_change(module, node.id, at)
        value = assigned(change, node.id)
        return triangle(module, value, change, depth - 1) if change and value else None
    if isinstance(node, ast.Attribute):
        values = settings(module, node)
        if values is None or len(values) != 1:
            return None
        return triangle(module, values[0], module.statement(values[0]), depth - 1)
    if isinstance(node, ast.Subscript):
        return _part(triangle(module, node.value, at, depth - 1), node.slice)
    if negated := _negated(module, node):
        inside = triangle(module, negated, at, depth - 1)
        return inside and replace(inside, half="upper" if inside.half == "lower" else "lower", value=1.0)
    name, args = operation(module, node)
    if not args:
        return None
    if name in ("tril", "triu"):
        return _cut(module, node, name, args)
    inside = triangle(module, args[0], at, depth - 1)
    if name in ("bool", "to", "type", "float", "cuda", "type_as", "contiguous", "detach", "clone", "long", "int"):
        return inside and replace(inside, value=1.0 if name == "bool" else inside.value)
    if name in ("view", "reshape"):
        return inside and _reshaped(inside, args[1:])
    if name == "unsqueeze":
        place = axis(args[1]) if len(args) == 2 else None
        return (
            replace(inside, axes=inside.axes + 1) if inside and place in (0, 1) and place <= inside.axes - 2 else None
        )
    return None


def _negated(module: ReadModule, node: ast.AST) -> ast.expr | None:
    match node:
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return operand
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0 | False)]):
            return left
    name, args = operation(module, node)
    if name == "logical_not" and len(args) == 1:
        return args[0]
    if name == "eq" and len(args) == 2 and number_value(args[1]) == 0:
        return args[0]
    return None


def _cut(module: ReadModule, node: ast.AST, name: str, args: list[ast.expr]) -> Triangle | None:
    """``torch.tril(torch.ones(T, T))`` and ``torch.full((T, T), value).triu(1)``."""
    given = option(node, args, 1, "diagonal")
    diagonal = 0 if given is None else axis(given)
    filled = _filled(module, args[0])
    if filled is None or diagonal != (0 if name == "tril" else 1):
        return None
    value, axes = filled
    if value == 0:
        return None
    return Triangle("lower" if name == "tril" else "upper", value, axes)


def _filled(module: ReadModule, node: ast.expr) -> tuple[float, int] | None:
    """Returns the value and the count of axes of ``torch.ones(T, T)`` or ``torch.full((T, T), value)``."""
    full = module.called(node)
    if not isinstance(node, ast.Call) or full not in ("torch.ones", "torch.full"):
        inner = operation(module, node)
        return _filled(module, inner[1][0]) if inner[0] in ("to", "cuda", "bool") and inner[1] else None
    sizes: list[ast.expr] = list(node.args)
    value: float | None = 1.0
    if full == "torch.full":
        if not sizes:
            return None
        value = number_value(sizes[1] if len(sizes) > 1 else keywords(node).get("fill_value"))
        sizes = sizes[:1]
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = list(sizes[0].elts)
    starred = any(isinstance(size, ast.Starred) for size in sizes)
    if value is None or starred or len(sizes) < 2 or any(axis(size) == 1 for size in sizes[-2:]):
        return None
    return value, len(sizes)


def _part(inside: Triangle | None, index: ast.expr) -> Triangle | None:
    """Returns the triangle of ``mask[:T, :T]``, ``mask[:, :, :T, :S]`` and ``mask[None, None]``: slices that begin at
    0.
    """
    if inside is None:
        return None
    items = list(index.elts) if isinstance(index, ast.Tuple) else [index]
    new = 0
    while items and isinstance(items[0], ast.Constant) and items[0].value is None:
        items, new = items[1:], new + 1
    if items and isinstance(items[0], ast.Constant) and items[0].value is ...:
        items = items[1:]
    parts = [item for item in items if isinstance(item, ast.Slice) and not item.step and _from_start(item)]
    if len(parts) != len(items) or len(parts) > inside.axes:
        return None
    return replace(inside, axes=inside.axes + new)


def _from_start(piece: ast.Slice) -> bool:
    return piece.lower is None or axis(piece.lower) == 0


def _reshaped(inside: Triangle, sizes: list[ast.expr]) -> Triangle | None:
    """Returns the triangle of ``tril.view(1, 1, T, T)``: a view with axes of size 1 in front. Assumes that the last two
    axes stay the same.
    """
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = list(sizes[0].elts)
    ahead, last = sizes[:-2], sizes[-2:]
    if len(sizes) <= inside.axes or any(axis(size) != 1 for size in ahead) or ast.dump(last[0]) != ast.dump(last[1]):
        return None
    return replace(inside, axes=len(sizes))
