"""Finds functions of the program that give equal results for equal arguments, and settings that never change."""

from __future__ import annotations

import ast

from tilewright.program.reading.module import Function, ReadModule
from tilewright.program.reading.purity import BUILTINS, METHODS

PACKAGES = ("math.", "numpy.", "torch.")
RANDOM = ("random", "rand", "seed", "shuffle", "choice", "empty", "load", "bernoulli", "multinomial", "normal",
          "uniform", "dropout", "poisson", "file", "save")  # fmt: skip
"""Parts of the names of functions that give other results each time, or that read and write files."""
OF_ARRAYS = METHODS | {"astype", "copy", "cumprod", "prod", "ravel", "std", "T", "tobytes"}
STATEMENTS = (ast.Assign, ast.AugAssign, ast.Return, ast.If, ast.For, ast.Expr, ast.Pass, ast.Assert, ast.AnnAssign)
DEPTH = 3


def is_pure_function(module: ReadModule, call: ast.Call, depth: int = DEPTH) -> bool:
    """Returns whether a call of a function of the program, or of NumPy, depends on its arguments alone."""
    full = module.full(call.func)
    if full.startswith(PACKAGES):
        return not any(word in part for part in full.split(".")[1:] for word in RANDOM) and not full.endswith("_")
    found = module.defined(call.func) if isinstance(call.func, ast.Name) else None
    if found is None or depth == 0:
        return False
    other, function = found
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    own = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
    own |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return all(_is_plain(other, node, own, depth) for each in function.body for node in ast.walk(each))


def _is_plain(module: ReadModule, node: ast.AST, own: set[str], depth: int) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=method)) if not module.full(node.func):
            return method in OF_ARRAYS
        case ast.Call():
            return module.is_builtin(node.func, *set(BUILTINS) - {"print"}) or is_pure_function(module, node, depth - 1)
        case ast.Name(id=name, ctx=ast.Load()):
            return name in own or bool(module.full(node)) or _is_fixed(module, node)
        case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()) | ast.Lambda() | ast.Await() | ast.Yield():
            return False
    return not isinstance(node, ast.stmt) or isinstance(node, STATEMENTS)


def _is_fixed(module: ReadModule, name: ast.Name) -> bool:
    """Returns whether a name of the file is a built-in, a function, or a literal that is bound once."""
    bound = module.file.bindings(name.id, name)
    if not bound:
        return True
    literal = isinstance(bound[0].value, (ast.Constant, ast.UnaryOp, ast.FunctionDef))
    return len(bound) == 1 and name.id not in module.declared_global and literal


def is_setting(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether an expression is a setting such as ``args.steps``: ``args`` is bound once, and only constructors
    set its attributes.
    """
    match node:
        case ast.Attribute(value=ast.Name(id=name) as owner, attr=attr):
            pass
        case _:
            return False
    if name == "self" or len(module.file.bindings(name, owner)) != 1 or name in module.declared_global:
        return False
    for each in module.program:
        for other in each.file.nodes:
            match other:
                case ast.Attribute(attr=found, ctx=ast.Store() | ast.Del()) if found == attr:
                    function = each.function_of(other)
                    if not isinstance(function, Function) or function.name != "__init__":
                        return False
                case ast.Name(id="setattr" | "vars" | "exec"):
                    return False
                case ast.Attribute(attr="__dict__"):
                    return False
    return True
