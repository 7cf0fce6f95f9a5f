"""Reads slices of equal length of one sequence by one index: ``data[i : i + n]`` for each start ``i``."""

from __future__ import annotations

import ast

from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.operations import operation
from tilewright.program.reading.rows import is_tensor

AROUND = ("from_numpy", "astype", "as_tensor", "long", "float", "to", "clone", "type", "int")
"""Functions that do the same to a piece and to all pieces."""
OF_NUMPY = ("from_numpy", "astype")
STARTS = ("randint", "randperm")


def indexed(module: ReadModule, piece: ast.expr, loop: ast.comprehension) -> str | None:
    """Returns the text that reads all slices at once; None if the expression is not such a slice."""
    if not isinstance(loop.target, ast.Name) or not isinstance(loop.iter, ast.Name):
        return None
    name, starts = loop.target.id, loop.iter
    node, numpy = piece, False
    while isinstance(node, ast.Call):
        called, args = operation(module, node)
        if called not in AROUND or any(_has(each, name) for each in args[1:]) or not args:
            return None
        numpy = numpy or called in OF_NUMPY
        node = args[0]
    match node:
        case ast.Subscript(value=(ast.Name() | ast.Attribute()) as data, slice=ast.Slice(step=None) as cut):
            low, high = cut.lower, cut.upper
        case _:
            return None
    if low is None or high is None:
        return None
    first, length = _terms(low), _terms(_minus(high, low))
    if first is None or length is None or (1, name) not in first or any(text == name for _, text in length):
        return None
    first.remove((1, name))
    if not length or any(_mentions(text, name) for _, text in (*first, *length)) or not _one_axis(module, starts):
        return None
    torch = module.spelled("torch.arange", starts).removesuffix(".arange")
    offset = _joined(first)
    index = f"{starts.id}.unsqueeze(1) + {torch}.arange({_joined(length)}, device={starts.id}.device)"
    index = index + (f" + {offset}" if offset and not offset.startswith("-") else f" {offset}" if offset else "")
    index = f"({index}).cpu().numpy()" if numpy else index
    start, end = module.span(node)
    whole = f"{module.code(data)}[{index}]"
    begin, stop = module.span(piece)
    return module.text[begin:start] + whole + module.text[end:stop]


def _one_axis(module: ReadModule, starts: ast.Name) -> bool:
    """Returns whether the starts are a tensor of one axis, as the text shows."""
    value = module.file.value(starts)
    name = operation(module, value)[0]
    if name == "randperm":
        return is_tensor(module, starts)
    match value:
        case ast.Call(args=[*_, ast.Tuple(elts=[_]) | ast.List(elts=[_])]):
            return name == "randint"
        case ast.Call(keywords=[*_]):
            size = next((each.value for each in value.keywords if each.arg == "size"), None)
            return name == "randint" and isinstance(size, (ast.Tuple, ast.List)) and len(size.elts) == 1
    return False


Term = tuple[int, str]


def _terms(node: ast.expr | None, sign: int = 1) -> list[Term] | None:
    """Returns the terms of a sum, with their signs; None for another expression."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            one, other = _terms(left, sign), _terms(right, sign if isinstance(op, ast.Add) else -sign)
            if one is None or other is None:
                return None
            terms = [*one, *other]
            for term in list(terms):
                opposite = (-term[0], term[1])
                if term in terms and opposite in terms:
                    terms.remove(term)
                    terms.remove(opposite)
            return terms
        case ast.Name() | ast.Constant(value=int()) | ast.Attribute():
            return [(sign, ast.unparse(node))]
        case ast.BinOp(op=ast.Mult()) if not any(isinstance(each, ast.Call) for each in ast.walk(node)):
            return [(sign, f"({ast.unparse(node)})")]
    return None


def _minus(one: ast.expr, other: ast.expr) -> ast.expr:
    return ast.BinOp(left=one, op=ast.Sub(), right=other)


def _joined(terms: list[Term]) -> str:
    text = "".join(f"{' + ' if sign > 0 else ' - '}{each}" for sign, each in sorted(terms, key=lambda term: -term[0]))
    return text.removeprefix(" + ").strip()


def _has(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _mentions(text: str, name: str) -> bool:
    return _has(ast.parse(text, mode="eval"), name)
