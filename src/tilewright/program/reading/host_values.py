"""Finds values that the host holds, such as numbers and arrays of NumPy. They never have a gradient."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from tilewright.program.reading.flow import loads
from tilewright.program.reading.module import Function, ReadModule
from tilewright.program.reading.numbers import is_number
from tilewright.source.source_file import stored

READS = ("item", "numpy", "tolist")
ROOTS = ("numpy.", "math.", "sklearn.metrics.")
KEEPING = ("append", "extend", "update", "add", "insert", "setdefault")
FRESH = tuple(f"torch.{name}" for name in ("zeros", "ones", "empty", "full"))
DEPTH = 6


def is_of_host(module: ReadModule, node: ast.AST | None, depth: int = DEPTH) -> bool:
    """Returns whether the text shows that an expression is made of values of the host only."""
    if depth == 0 or node is None:
        return False
    match node:
        case ast.Constant():
            return True
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]) if name in READS:
            return True
        case ast.Call(func=function, args=args, keywords=named):
            given = [*args, *(each.value for each in named)]
            known = module.full(function).startswith(ROOTS) or _is_plain(module, function)
            known = known or module.is_builtin(function, "len", "sum", "float", "int", "round", "min", "max", "zip")
            return known and all(is_of_host(module, each, depth - 1) for each in given)
        case ast.BinOp(left=left, right=right):
            return is_of_host(module, left, depth - 1) and is_of_host(module, right, depth - 1)
        case ast.Compare(left=left, comparators=others):
            return all(is_of_host(module, each, depth - 1) for each in (left, *others))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(is_of_host(module, each, depth - 1) for each in parts)
        case ast.Name():
            return _is_name_of_host(module, node, depth)
    return is_number(module, node)


def _is_name_of_host(module: ReadModule, node: ast.Name, depth: int) -> bool:
    scope, bound = module.file.scope(node), module.file.bindings(node.id, node)
    if not isinstance(scope, Function) or node.id in module.declared_global or not bound:
        return False
    for each in bound:
        added = each.place.value if isinstance(each.place, ast.AugAssign) else None
        value = added if added is not None else each.value if each.kind == "value" else None
        if not is_of_host(module, value, depth - 1):
            return False
    values = [each.value for each in bound if not isinstance(each.place, ast.AugAssign)]
    if any(isinstance(value, (ast.List, ast.Tuple)) for value in values):
        return all(_is_use_of_host(module, use, depth) for use in loads(scope, node.id))
    return True


def _is_use_of_host(module: ReadModule, use: ast.Name, depth: int) -> bool:
    """Returns whether a use of a list leaves only values of the host in it."""
    parent = module.parent(use)
    match parent:
        case ast.Attribute(attr="append" | "extend"):
            call = module.parent(parent)
            return isinstance(call, ast.Call) and all(is_of_host(module, each, depth - 1) for each in call.args)
        case ast.Call(func=function):
            plain = module.full(function).startswith(ROOTS) or _is_plain(module, function)
            return plain or module.is_builtin(function, "len", "sum", "min", "max", "zip")
    return isinstance(parent, (ast.Return, ast.BinOp, ast.Tuple)) or (
        isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load)
    )


def _is_plain(module: ReadModule, function: ast.expr) -> bool:
    """Returns whether a name is a function of the program that reads only its arguments, NumPy and `math`."""
    found = module.defined(function) if isinstance(function, ast.Name) else None
    if found is None or not isinstance(found[1], ast.FunctionDef) or found[1].decorator_list:
        return False
    other, body = found[0], found[1]
    if any(not isinstance(each, ast.Constant) for each in (*body.args.defaults, *body.args.kw_defaults)):
        return False
    own = {each.arg for each in ast.walk(body.args) if isinstance(each, ast.arg)} | stored(body)
    names = (each for each in ast.walk(body) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    return all(
        each.id in own or other.full(each).startswith(("numpy", "math")) or _is_builtin(other, each) for each in names
    )


def _is_builtin(module: ReadModule, node: ast.Name) -> bool:
    return hasattr(builtins, node.id) and module.is_builtin(node, node.id)


def keeps_tensors(module: ReadModule, function: Function) -> bool:
    """Returns whether a function may keep tensors in attributes, elements, lists, or names of other functions."""
    return any(not _is_harmless(module, node) for node in _kept(function))


def _kept(function: Function) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        match node:
            case ast.Global() | ast.Nonlocal() | ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                yield node
            case ast.Call(func=ast.Attribute(attr=method)) if method in KEEPING:
                yield node


def _is_harmless(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether a statement adds a value of the host to a list or a tensor that its function makes."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name() as kept, attr="append" | "extend"), args=[value]):
            pass
        case ast.Subscript(value=ast.Name() as kept):
            statement = module.statement(node)
            if not isinstance(statement, ast.Assign) or statement.targets != [node]:
                return False
            value = statement.value
        case _:
            return False
    bound = module.file.bindings(kept.id, kept)
    made = (isinstance(each.value, ast.List) or module.called(each.value) in FRESH for each in bound)
    return bool(bound) and all(made) and is_of_host(module, value)
