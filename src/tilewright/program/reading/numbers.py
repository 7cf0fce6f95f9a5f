"""Finds expressions that are provably Python numbers, not tensors."""

from __future__ import annotations

import ast

from tilewright.program.reading.layers import settings
from tilewright.program.reading.module import ReadModule
from tilewright.source.source_file import Binding

DEPTH = 6
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.Mod)
ANNOTATIONS = ("float", "int")


def is_number(module: ReadModule, node: ast.AST | None, depth: int = DEPTH, *, sizes: bool = False) -> bool:
    """Returns whether an expression is provably a Python number (or a NumPy scalar).

    sizes: whether a parameter without annotation is taken for a number, as in the arithmetic of `__init__`, for example
    ``head_dim ** -0.5``.
    """
    if depth == 0:
        return False
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return is_number(module, operand, depth, sizes=sizes)
        case ast.BinOp(left=left, op=op, right=right):
            within = sizes or (_in_init(module, node) and isinstance(op, (ast.Div, ast.FloorDiv, ast.Pow)))
            both = (is_number(module, each, depth, sizes=within) for each in (left, right))
            return isinstance(op, ARITHMETIC) and all(both)
        case ast.Call(func=func, args=args):
            return _call(module, func, args, depth, sizes=sizes)
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=index):
            return is_number(module, index)
        case ast.Attribute():
            return _attribute(module, node, depth, sizes=sizes)
        case ast.Name():
            return _name(module, node, depth, sizes=sizes)
    return False


def _call(module: ReadModule, func: ast.expr, args: list[ast.expr], depth: int, *, sizes: bool) -> bool:
    full = module.full(func)
    if full.startswith("math.") or module.is_builtin(func, "int", "float", "len"):
        return True
    if full in ("numpy.sqrt", "numpy.power") or module.is_builtin(func, "min", "max", "abs", "round"):
        return bool(args) and all(is_number(module, each, depth - 1, sizes=sizes) for each in args)
    return (
        isinstance(func, ast.Attribute)
        and func.attr in ("size", "dim", "numel")
        and (func.attr != "size" or len(args) == 1)
    )


def _attribute(module: ReadModule, node: ast.Attribute, depth: int, *, sizes: bool) -> bool:
    if module.full(node) in ("math.pi", "math.e", "numpy.pi"):
        return True
    values = settings(module, node)
    if values is not None:
        return all(is_number(module, each, depth - 1) for each in values)
    root = node.value
    return sizes and isinstance(root, ast.Name) and not module.full(node)


def _name(module: ReadModule, node: ast.Name, depth: int, *, sizes: bool) -> bool:
    bindings = module.file.bindings(node.id, node)
    return bool(bindings) and all(_binding(module, each, depth, sizes=sizes) for each in bindings)


def _binding(module: ReadModule, binding: Binding, depth: int, *, sizes: bool) -> bool:
    if binding.kind == "parameter" and isinstance(binding.place, ast.arg):
        return sizes or _is_number_parameter(module, binding.place)
    if binding.kind == "value":
        return is_number(module, binding.value, depth - 1, sizes=sizes)
    return binding.kind == "part" and _unpacks_shape(binding)


def _unpacks_shape(binding: Binding) -> bool:
    """Returns whether a binding is like ``B, T, C = x.shape``. It is not for ``*lead, C = x.shape``, where one name is
    a tuple.
    """
    targets = binding.place.targets if isinstance(binding.place, ast.Assign) else []
    if any(isinstance(node, ast.Starred) for target in targets for node in ast.walk(target)):
        return False
    match binding.value:
        case ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size"), args=[]):
            return True
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Slice()):
            return True
    return False


def _is_number_parameter(module: ReadModule, parameter: ast.arg) -> bool:
    if isinstance(parameter.annotation, ast.Name):
        return parameter.annotation.id in ANNOTATIONS
    around = module.parent(parameter)
    if parameter.annotation is not None or not isinstance(around, ast.arguments):
        return False
    places = (*around.posonlyargs, *around.args)
    defaults = dict(zip(places[len(places) - len(around.defaults) :], around.defaults, strict=True))
    named = {arg: value for arg, value in zip(around.kwonlyargs, around.kw_defaults, strict=True) if value is not None}
    default = {**defaults, **named}.get(parameter)
    return isinstance(default, ast.Constant) and is_number(module, default)


def _in_init(module: ReadModule, node: ast.AST) -> bool:
    function = module.function_of(node)
    return function is not None and function.name == "__init__"


def number_value(node: ast.AST | None) -> int | float | None:
    """Returns the value of a literal number with its sign, ``float("-inf")`` and ``-math.inf``; None for others."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inside = number_value(operand)
            return None if inside is None else -inside
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)], keywords=[]):
            try:
                return float(text)
            except ValueError:
                return None
        case ast.Attribute(value=ast.Name(id="math" | "torch" | "np" | "numpy"), attr="inf"):
            return float("inf")
    return None


def axis(node: ast.AST | None) -> int | None:
    """Returns the value of a literal integer; None for others."""
    value = number_value(node)
    return value if isinstance(value, int) else None
