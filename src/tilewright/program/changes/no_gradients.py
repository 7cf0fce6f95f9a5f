"""Inference without gradients: ``model.eval()`` and no backward pass → ``torch.inference_mode()`` or ``no_grad()``.

A function that returns only numbers or nothing gets a decorator: ``inference_mode`` in a script that never trains, else
``no_grad``. One that returns tensors gets it only in a file without gradients. The top of a script is switched as a
whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import Function, NotSure, ReadModule
from tilewright.program.reading.numbers import is_number
from tilewright.program.reading.scripts import is_script
from tilewright.source.source_file import own, returned

WITHOUT = tuple(f"torch.{name}" for name in ("no_grad", "inference_mode", "set_grad_enabled"))
WITH = ("backward", "requires_grad_", "requires_grad", "grad", "retain_grad")

KEEPING = ("append", "extend", "update", "add", "insert", "setdefault")


class NoGradients(ProgramChange):
    name = "no_gradients"
    about = "stores nothing for a backward pass that never comes"
    words = ("inference_mode", "inference mode", "no_grad", "no grad", "disable* gradient*", "without gradient*",
             "gradient* inference", "autograd inference", "eval* no gradient*")  # fmt: skip
    findings = ("launch-calls", "host-late", "short-kernels")
    order = 45
    absent = "the program has no evaluation that keeps gradients"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        seen: list[ast.AST] = []
        for call in module.file.every(ast.Call):
            scope = module.file.scope(call)
            if not _is_eval(call) or scope in seen or isinstance(scope, ast.Lambda):
                continue
            seen.append(scope)
            try:
                site = _in_function(module, scope) if isinstance(scope, Function) else _at_top(module, call)
                if site is not None:
                    yield site
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)

    def present(self, module: ReadModule) -> str:
        node = next((node for node in module.file.nodes if module.full(node) in WITHOUT), None)
        return f"{module.place(node)} has {module.full(node)}" if node is not None else ""


def _is_eval(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "eval" and not call.args and not call.keywords


def _gradient(module: ReadModule, inside: ast.AST) -> ast.AST | None:
    for node in ast.walk(inside):
        if isinstance(node, ast.Attribute) and node.attr in WITH:
            return node
        if module.full(node).startswith(("torch.autograd", "torch.optim")):
            return node
    return None


def _in_function(module: ReadModule, function: Function) -> ChangeSite | None:
    if any(module.full(node) in WITHOUT for node in ast.walk(function)):
        return None
    if found := _gradient(module, function):
        raise NotSure(f"{function.name} computes gradients in line {getattr(found, 'lineno', 0)}", function)
    if isinstance(function, ast.AsyncFunctionDef) or any(own(function, ast.Yield)):
        raise NotSure(f"{function.name} is a generator or asynchronous", function)
    elsewhere = _gradient(module, module.file.tree)
    numbers = all(_is_number(module, value) for value in returned(function)) and not _stores(function)
    if elsewhere is not None and not numbers:
        raise NotSure(f"{function.name} returns or keeps tensors, and the file computes gradients elsewhere", function)
    # What a model keeps in inference mode, such as a cache, could not be used in a later training.
    alone = numbers and elsewhere is None and is_script(module)
    mode = module.spelled("torch.inference_mode" if alone else "torch.no_grad", function)
    edit = module.insert_before(function, f"@{mode}()")
    return ChangeSite(function.lineno, f"function {function.name}", (edit,))


def _is_number(module: ReadModule, value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.Tuple(elts=parts):
            return all(_is_number(module, part) for part in parts)
        case ast.Call(func=ast.Attribute(attr="item"), args=[]):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_number(module, left) and _is_number(module, right)
        case ast.Name():
            bindings = module.file.bindings(value.id, value)
            return bool(bindings) and all(_adds_numbers(module, each.place, each.value) for each in bindings)
    return is_number(module, value)


def _adds_numbers(module: ReadModule, place: ast.AST, value: ast.AST | None) -> bool:
    if isinstance(place, ast.AugAssign):
        return _is_number(module, place.value)
    return (
        isinstance(place, ast.Assign)
        and isinstance(value, ast.expr)
        and not isinstance(value, ast.Name)
        and (_is_number(module, value))
    )


def _stores(function: Function) -> bool:
    """Returns whether a function may keep tensors: in attributes, elements, lists, or names of other functions."""
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
            return True
    return False


def _at_top(module: ReadModule, call: ast.Call) -> ChangeSite | None:
    if any(module.full(node) in WITHOUT for node in module.file.nodes):
        return None
    if found := _gradient(module, module.file.tree):
        raise NotSure(f"line {getattr(found, 'lineno', 0)} of the file computes gradients", call)
    statement = module.statement(call)
    edit = module.insert_after(statement, f"{module.spelled('torch.set_grad_enabled', call)}(False)")
    return ChangeSite(call.lineno, "evaluation at the top of the script", (edit,))


CHANGE = NoGradients()
