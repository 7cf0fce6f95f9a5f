"""Loops over parameters → operations on all of them at once: SGD, momentum, Adam, averages, norms and scaling by hand.

    for p in model.parameters():                      all_p = [p for p in model.parameters()]
        p.data.add_(p.grad.data, alpha=-lr)           torch._foreach_add_(…, alpha=-lr)

`torch.optim` and `clip_grad_norm_` use the same functions. The change adds no optimizer, so a step of the program stays
the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import scope_of
from tilewright.program.reading.listed import IN_PLACE, ListedLoop
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.source.source_file import stored

TENSORS = ("parameters", "named_parameters", "buffers", "named_buffers")


class ForeachParameters(ProgramChange):
    name = "foreach_parameters"
    about = "updates, scales or sums all parameters in a few kernels, instead of several for each parameter"
    words = ("foreach", "_foreach_", "loop* over parameter*", "parameter loop*", "optimizer by hand", "sgd by hand",
             "adam by hand", "ema loop*", "gradient norm loop*", "clip* by hand")  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late", "host-sync")
    ran = (r"_foreach_|multi_tensor_apply_kernel",)
    order = 32
    absent = "the program has no loop over parameters that works on the GPU"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for loop in module.file.every(ast.For):
            if _over_tensors(module, loop) and not loop.orelse:
                try:
                    if (site := _site(module, loop)) is not None:
                        yield site
                except NotSure as reason:
                    yield NearMiss(reason.line, reason.reason)
        for call in module.file.every(ast.Call):
            if module.is_builtin(call.func, "sum") and len(call.args) == 1 and not call.keywords:
                try:
                    if (site := _sum(module, call)) is not None:
                        yield site
                except NotSure as reason:
                    yield NearMiss(reason.line, reason.reason)


def _over_tensors(module: ReadModule, loop: ast.For | ast.comprehension) -> bool:
    """Returns whether a loop goes over tensors: over the parameters of a model, or over objects whose gradients it
    reads or which it changes in place.
    """
    if any(isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in TENSORS
           for n in ast.walk(loop.iter)):  # fmt: skip
        inside = loop.body if isinstance(loop, ast.For) else [loop.target]
        return any((isinstance(n, ast.Attribute) and n.attr in ("data", "grad", *IN_PLACE))
                   or isinstance(n, ast.AugAssign) or (isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
                   for each in inside for n in ast.walk(each))  # fmt: skip
    targets, body = stored(loop.target), loop.body if isinstance(loop, ast.For) else []
    for node in (n for each in body for n in ast.walk(each)):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="grad") if name in targets:
                return True
    return False


def _site(module: ReadModule, loop: ast.For) -> ChangeSite | None:
    _check_iterated(module, loop)
    listed = ListedLoop(module, loop, module.spelled("torch._foreach", loop))
    listed.body(loop.body)
    if not listed.work:
        return None
    own = listed.targets | set(listed.local) | set(listed.aliases)
    if use := next((node for node in _outside(module, loop) if node.id in own), None):
        raise NotSure(f"line {use.lineno} reads '{use.id}' of the loop", loop)
    start, stop = module.insert_before(loop).start, module.delete(loop).end
    indentation = module.text[start : module.span(loop)[0]]
    new = "".join(f"{indentation}{line}\n" for line in listed.lines)
    return ChangeSite(loop.lineno, f"loop over {module.code(loop.iter)}"[:60], (Edit(start, stop, new),))


def _check_iterated(module: ReadModule, loop: ast.For | ast.comprehension) -> None:
    """Raises NotSure if a loop may go over a generator. The change lists the elements several times, and a generator
    gives them only once.
    """
    for node in ast.walk(loop.iter):
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and node.func.attr in (*TENSORS, "items", "values", "keys")
            if not method and not module.is_builtin(node.func, "zip", "enumerate", "list", "tuple", "range", "len"):
                raise NotSure(f"{module.code(node)} may give other elements the second time", node)
        elif isinstance(node, ast.Name) and node is not loop.iter:
            continue
        elif isinstance(node, ast.GeneratorExp):
            raise NotSure("a generator gives its elements only once", node)
    for name in (node for node in ast.walk(loop.iter) if isinstance(node, ast.Name)):
        for value in module.file.values(name):
            called = (
                isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in TENSORS
            )
            if isinstance(value, ast.GeneratorExp) or called:
                raise NotSure(f"'{name.id}' is a generator, which gives its elements only once", name)
        if any(each.kind == "parameter" for each in module.file.bindings(name.id, name)):
            _check_given(module, name)


def _check_given(module: ReadModule, name: ast.Name) -> None:
    """Raises NotSure if a call of the program may pass a generator for a parameter."""
    function = module.function_of(name)
    if function is None:
        return
    for each in module.program:
        for call in each.file.every(ast.Call):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            owner = module.class_of(function)
            if called != function.name and (function.name != "__init__" or owner is None or called != owner.name):
                continue
            for given in (*call.args, *(keyword.value for keyword in call.keywords)):
                direct = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute)
                if isinstance(given, ast.GeneratorExp) or (direct and given.func.attr in TENSORS):  # type: ignore[attr-defined]
                    raise NotSure(
                        f"{each.place(call)} passes a generator for '{name.id}', which gives its elements only once",
                        name,
                    )


def _outside(module: ReadModule, loop: ast.For) -> Iterator[ast.Name]:
    """Yields the reads of names in the loop's function, outside of the loop. Leaves out a read if another loop or
    statement around it binds the name.
    """
    inside = set(ast.walk(loop))
    for node in ast.walk(scope_of(module, loop)):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node in inside:
            continue
        if not any(_binds(each, node.id) for each in module.above(node)):
            yield node


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.For, ast.comprehension)):
        return name in stored(node.target)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        return any(name in stored(each.target) for each in node.generators)
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        return any(arg.arg == name for arg in (*node.args.args, *node.args.kwonlyargs))
    return False


def _sum(module: ReadModule, call: ast.Call) -> ChangeSite | None:
    """``sum(p.grad.norm() ** 2 for p in …)`` → the sum of a vector of norms."""
    inner = call.args[0]
    if not isinstance(inner, (ast.GeneratorExp, ast.ListComp)) or len(inner.generators) != 1:
        return None
    loop = inner.generators[0]
    grad = any(isinstance(n, ast.Attribute) and n.attr in ("grad", "norm") for n in ast.walk(inner.elt))
    if not grad:
        return None
    _check_iterated(module, loop)
    listed = ListedLoop(module, loop, module.spelled("torch._foreach", call))
    code, kind = listed._value(inner.elt)
    if kind != "vector":
        return None
    new = listed.summed(code, inner.elt)
    for line in listed.lines:
        name, _, value = line.partition(" = ")
        new = new.replace(name, value)
    return ChangeSite(call.lineno, "sum over parameters", (module.replace(call, new),))


CHANGE = ForeachParameters()
