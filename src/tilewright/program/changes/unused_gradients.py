"""A call of a model in a program that trains, whose results nobody differentiates → below ``torch.no_grad()``.

    action, value = agent(state)            with torch.no_grad():
    values.append(value.detach())               action, value = agent(state)
    env.step(action.argmax().item())        …

Every use of every result must cut the gradient: ``detach()``, a read of the host, a comparison, a size; or the result
holds whole numbers, such as a sampled action.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.changes.no_gradients import WHOLE, is_off, stores
from tilewright.program.reading.flow import scope_of
from tilewright.program.reading.gradients import gradient_in
from tilewright.program.reading.host_reads import in_loop
from tilewright.program.reading.models import is_module, made_models
from tilewright.program.reading.module import Function, NotSure, ReadModule
from tilewright.program.reading.operations import operation
from tilewright.program.reading.purity import METHODS
from tilewright.source.source_file import returned

CUTS = ("detach", "item", "tolist", "argmax", "argmin", "argsort", "long", "int", "bool", "eq", "ne", "gt", "lt", "ge",
        "le", "size", "dim", "numel", "isnan", "isinf", "isfinite")  # fmt: skip
FACTS = ("shape", "device", "dtype", "ndim")
DRAWN = (*WHOLE, "sample")
"""Operations whose results have no gradient. `sample` of a distribution has none; `rsample` has."""
OTHER = ("parameters", "named_parameters", "buffers", "state_dict", "load_state_dict", "train", "eval", "to", "cuda",
         "zero_grad", "modules", "children", "apply", "requires_grad_", "register_buffer", "compile")  # fmt: skip
"""Methods of a model that compute nothing with it."""


class UnusedGradients(ProgramChange):
    name = "unused_gradients"
    about = "stores nothing for the backward pass of a call whose results nobody differentiates"
    words = ("unused gradient*", "rollout* gradient*", "gradient* rollout*", "gradient* nobody*", "detach* result*")
    findings = ("launch-calls", "host-late", "short-kernels")
    order = 46
    absent = "every call of a model in a loop of the program may be differentiated"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        models = {(made.name, scope_of(module, made.statement)) for made in made_models(module)}
        names = {name for name, _ in models}
        for statement in module.file.every(ast.Assign):
            call = _called(statement.value)
            if call is None or _owner(module, call) not in names or in_loop(module, statement) is None:
                continue
            if is_off(module, statement) or gradient_in(module, scope_of(module, statement)) is None:
                continue  # `no_gradients` handles functions that do not train
            try:
                yield _site(module, statement, call)
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _called(node: ast.expr) -> ast.Call | None:
    """Returns the innermost call of ``model(x)``, ``agent.act(x)``, or ``model(x).softmax(-1)``."""
    call = None
    while isinstance(node, ast.Call):
        call = node
        if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Call):
            return call
        node = node.func.value
    return call


def _owner(module: ReadModule, call: ast.Call) -> str:
    """Returns the text of the model that a call calls, or whose method it calls."""
    if isinstance(call.func, ast.Attribute) and call.func.attr not in OTHER:
        inner = module.code(call.func.value)
        return inner if inner != "self" else module.code(call.func)
    return module.code(call.func) if isinstance(call.func, ast.Name) else ""


def _site(module: ReadModule, statement: ast.Assign, call: ast.Call) -> ChangeSite:
    (target,) = statement.targets if len(statement.targets) == 1 else (None,)
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    read = 0
    for place, name in enumerate(names):
        if not isinstance(name, ast.Name):
            raise NotSure("its results are kept in an attribute or an element", statement)
        uses = _uses(module, name, statement)
        if not uses or (call is statement.value and _is_drawn(module, call, place, len(names))):
            read += bool(uses)
            continue
        if len(module.file.bindings(name.id, name)) != 1:
            raise NotSure(f"'{name.id}' has several values", statement)
        if use := next((each for each in uses if not _cuts(module, each)), None):
            raise NotSure(f"line {use.lineno} may differentiate '{name.id}'", use)
        read += 1
    if not read:
        raise NotSure("its results are not read, so the call may be there for what it changes", statement)
    if (keeps := _keeping(module)) is not None:
        raise NotSure(f"{keeps} may keep a tensor between calls, which is differentiated later", statement)
    line = f"with {module.spelled('torch.no_grad', statement)}():"
    return ChangeSite(statement.lineno, f"call of {_owner(module, call)}", module.wrap([statement], line))


def _keeping(module: ReadModule) -> str | None:
    """Returns a method of a model, other than its constructor, that stores something; None if there is none."""
    for each in module.program:
        for function in each.file.functions:
            owner = each.class_of(function)
            if owner is not None and is_module(each, owner) and function.name != "__init__" and stores(function):
                return f"{owner.name}.{function.name}"
    return None


def _uses(module: ReadModule, name: ast.Name, statement: ast.stmt) -> list[ast.Name]:
    """Returns the reads of a name in the scope of its statement, with the reads in inner functions."""
    scope, own = scope_of(module, statement), module.file.bindings(name.id, name)
    if name.id in module.declared_global or isinstance(scope, ast.Module):
        nodes = [n for n in module.file.every(ast.Name) if n.id == name.id]
        found = [n for n in nodes if module.file.bindings(n.id, n) == own]
    else:
        found = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id]
    return [node for node in found if isinstance(node.ctx, ast.Load)]


def _cuts(module: ReadModule, use: ast.expr) -> bool:
    """Returns whether no gradient passes from a use on."""
    above = module.parent(use)
    match above:
        case ast.Attribute(attr=attr) if attr in FACTS:
            return True
        case ast.Attribute(attr=method):
            call = module.parent(above)
            if not isinstance(call, ast.Call) or call.func is not above:
                return False
            return method in CUTS or (method in METHODS and not method.endswith("_") and _cuts(module, call))
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return False
        case ast.Compare():
            return True
        case ast.Subscript(value=value) if value is use:
            return _cuts(module, above)
        case ast.Call(args=[first, *_]) if first is use:
            if module.is_builtin(above.func, "int", "float", "bool", "len"):
                return True
            name, full = operation(module, above)[0], module.full(above.func)
            return full.startswith("torch.") and (name in CUTS or (name in METHODS and _cuts(module, above)))
    return False


def _is_drawn(module: ReadModule, call: ast.Call, place: int, count: int) -> bool:
    """Returns whether a result of a method of the program holds integers, or a sample, without a gradient."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else "forward"
    methods = [
        (each, node)
        for each in module.program
        for node in each.file.functions
        if node.name == name and each.class_of(node) is not None
    ]
    if len(methods) != 1:
        return False
    other, method = methods[0]
    results = returned(method)
    for result in results:
        parts = result.elts if isinstance(result, ast.Tuple) else [result]
        if len(parts) != count or not _is_whole(other, parts[place], method):
            return False
    return bool(results)


def _is_whole(module: ReadModule, node: ast.expr, method: Function) -> bool:
    if operation(module, node)[0] in DRAWN:
        return True
    if not isinstance(node, ast.Name):
        return False
    bound = module.file.bindings(node.id, node)
    drawn = [
        each
        for each in bound
        if each.kind == "value" and isinstance(each.value, ast.expr) and operation(module, each.value)[0] in DRAWN
    ]
    given = [each for each in bound if each.kind == "parameter"]  # an argument of the caller, drawn before
    return bool(drawn) and len(drawn) + len(given) == len(bound)


CHANGE = UnusedGradients()
