"""Inference without gradients: ``model.eval()`` and no backward pass → ``torch.inference_mode()`` or ``no_grad()``.

A function gets a decorator if it returns nothing, only numbers and NumPy arrays, or only tensors of integers, such as
tokens. A function that returns other tensors gets it only in a program without gradients. The decorator is
``inference_mode`` in a script that never trains, else ``no_grad``. If ``eval()`` follows training, the statements after
it are put below ``with torch.no_grad():``. If a program never trains and its functions are not enough, gradients are
switched off for the whole script.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import after, block_of
from tilewright.program.reading.gradients import gradient_in, never_trains, training_call
from tilewright.program.reading.host_values import is_of_host, keeps_tensors
from tilewright.program.reading.module import Function, NotSure, ReadModule
from tilewright.program.reading.numbers import is_number
from tilewright.program.reading.operations import operation
from tilewright.program.reading.scripts import after_imports, is_script
from tilewright.source.source_file import own, returned

WITHOUT = tuple(f"torch.{name}" for name in ("no_grad", "inference_mode", "set_grad_enabled"))
KEEPING = ("append", "extend", "update", "add", "insert", "setdefault")
WHOLE = ("argmax", "argmin", "multinomial", "argsort", "long", "int", "randint", "arange")
"""Operations whose results are integers, which never have a gradient."""


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
            looked = _is_eval(call) or (operation(module, call)[0] in WHOLE and _picks(module, scope))
            if not looked or scope in seen or isinstance(scope, ast.Lambda) or is_off(module, call):
                continue
            seen.append(scope)
            try:
                site = _in_function(module, scope, call) if isinstance(scope, Function) else _at_top(module, call)
                if site is not None:
                    yield site
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)
        yield from _whole_script(module)

    def present(self, module: ReadModule) -> str:
        node = next((node for node in module.file.nodes if module.full(node) in WITHOUT), None)
        return f"{module.place(node)} has {module.full(node)}" if node is not None else ""


def _is_eval(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "eval" and not call.args and not call.keywords


def is_off(module: ReadModule, node: ast.AST) -> bool:
    """Returns whether a block or a function around a node already switches gradients off."""
    return any(
        any(module.full(n) in WITHOUT for item in each.items for n in ast.walk(item.context_expr))
        if isinstance(each, ast.With)
        else isinstance(each, Function)
        and any(module.full(n) in WITHOUT for d in each.decorator_list for n in ast.walk(d))
        for each in module.above(node)
    )


def _in_function(module: ReadModule, function: Function, call: ast.Call) -> ChangeSite | None:
    if any(module.full(node) in WITHOUT for node in ast.walk(function)):
        return None
    if function.name == "__init__":
        return None  # A tensor that is made in inference mode cannot be trained. `_whole_script` handles this case.
    if found := training_call(module, function):
        if _is_eval(call) and (site := _behind(module, function, call)) is not None:
            return site
        raise NotSure(f"{function.name} computes gradients in line {getattr(found, 'lineno', 0)}", function)
    if isinstance(function, ast.AsyncFunctionDef) or any(own(function, ast.Yield)):
        raise NotSure(f"{function.name} is a generator or asynchronous", function)
    trains = gradient_in(module, module.file.tree) is not None or not never_trains(module)
    kept = keeps_tensors(module, function)
    numbers = all(_is_number(module, value) or is_of_host(module, value) for value in returned(function)) and not kept
    whole = not _is_eval(call) and not stores(function)
    if trains and not numbers and not whole:
        raise NotSure(
            f"{function.name} returns or keeps tensors, and the program computes gradients elsewhere", function
        )
    # A tensor that a model stores in inference mode, such as a cache, cannot be used in later training.
    alone = numbers and not trains and is_script(module)
    mode = module.spelled("torch.inference_mode" if alone else "torch.no_grad", function)
    edit = module.insert_before(function, f"@{mode}()")
    return ChangeSite(function.lineno, f"function {function.name}", (edit,))


def _behind(module: ReadModule, function: Function, call: ast.Call) -> ChangeSite | None:
    """Returns the change that puts the statements after a call of ``model.eval()`` under ``no_grad()``. Returns None if
    the code after the call trains again.
    """
    statement = module.statement(call)
    following = after(module, statement)
    if not following or block_of(module, statement) is not function.body:
        return None
    if any(training_call(module, each) or isinstance(each, (ast.Global, ast.Nonlocal)) for each in following):
        return None
    given = [value for value in returned(function) if value.lineno >= following[0].lineno]
    if not all(_is_number(module, value) for value in given) or _stores_outside(function, following):
        return None
    line = f"with {module.spelled('torch.no_grad', call)}():"
    return ChangeSite(call.lineno, f"evaluation in {function.name}", module.wrap(following, line))


def _stores_outside(function: Function, statements: list[ast.stmt]) -> bool:
    """Returns whether statements store something in an attribute, or in an object that a parameter names."""
    outside = {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            return True
        match node:
            case ast.Call(func=ast.Attribute(value=kept, attr=method)) if method in KEEPING:
                if not isinstance(kept, ast.Name) or kept.id in outside:
                    return True
    return False


def _picks(module: ReadModule, function: ast.AST) -> bool:
    """Returns whether a function runs a model in a loop and returns only integers, such as the tokens that it picks."""
    if not isinstance(function, Function) or not (any(own(function, ast.For)) or any(own(function, ast.While))):
        return False
    values = returned(function)
    return bool(values) and all(_is_whole(module, value) for value in values)


def _is_whole(module: ReadModule, node: ast.AST | None, depth: int = 6) -> bool:
    """Returns whether a tensor provably holds integers. A tensor that is concatenated with one does, too: both hold
    tokens.
    """
    if depth == 0 or node is None:
        return False
    name, args = operation(module, node)
    if name in WHOLE:
        return True
    if name in ("unsqueeze", "squeeze", "view", "reshape", "gather") and args:
        return _is_whole(module, args[0], depth - 1)
    if name in ("cat", "concat", "hstack") and args and isinstance(args[0], (ast.Tuple, ast.List)):
        return any(_is_whole(module, each, depth - 1) for each in args[0].elts)
    if isinstance(node, ast.Name):
        bindings = [each for each in module.file.bindings(node.id, node) if each.kind != "parameter"]
        return bool(bindings) and all(_is_whole(module, each.value, depth - 1) for each in bindings)
    return False


def _whole_script(module: ReadModule) -> Iterator[ChangeSite]:
    """Yields the site of a script (the place where the change applies). Its program never trains, and calls ``eval()``
    in a constructor or in another file.
    """
    if module is not module.program[0] or not is_script(module) or not never_trains(module):
        return
    if any(each.full(node) in WITHOUT for each in module.program for node in each.file.nodes):
        return
    calls = [(each, call) for each in module.program for call in each.file.every(ast.Call) if _is_eval(call)]
    for each, call in calls:
        scope = module.file.scope(call) if each is module else None
        if each is not module or (isinstance(scope, Function) and scope.name == "__init__"):
            edit = after_imports(module, "{torch.set_grad_enabled}(False)", "torch")
            if edit is not None:
                line = call.lineno if each is module else 1
                yield ChangeSite(line, "the whole script, which never trains", (edit,))
            return


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


def stores(function: Function) -> bool:
    """Returns whether a function may store tensors in attributes, elements, lists, or names of other functions."""
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
    if found := training_call(module, module.file.tree):
        raise NotSure(f"line {getattr(found, 'lineno', 0)} of the file computes gradients", call)
    statement = module.statement(call)
    edit = module.insert_after(statement, f"{module.spelled('torch.set_grad_enabled', call)}(False)")
    return ChangeSite(call.lineno, "evaluation at the top of the script", (edit,))


CHANGE = NoGradients()
