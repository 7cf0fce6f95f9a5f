"""A constant that a loop makes anew in each step → made once before the loop: masks, positions, tables of numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import changes_name, scope_of
from tilewright.program.reading.host_reads import Loop
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.operations import operation
from tilewright.program.reading.pure_functions import is_pure_function, is_setting
from tilewright.program.reading.rows import is_tensor

MADE = ("arange", "tril", "triu", "eye", "linspace", "tensor", "tril_indices", "triu_indices")
"""Functions that make constant tensors with more than one distinct number."""
WITHIN = (*MADE, "ones", "zeros", "full", "to", "cuda", "bool", "float", "long", "unsqueeze", "view", "reshape",
          "expand", "transpose", "device", "int", "half", "bfloat16", "logical_not")  # fmt: skip


class ConstantsOnce(ProgramChange):
    name = "constants_once"
    about = "makes a tensor that never changes once, instead of in each step"
    words = ("hoist*", "loop invariant", "constant tensor*", "recreat*", "re create*", "precompute* mask*",
             "cache mask*", "register_buffer", "create mask* once", "positions once")  # fmt: skip
    findings = ("short-kernels", "launch-calls", "host-late", "pageable-copies")
    order = 50
    absent = "no loop of the program makes a constant anew"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for loop in module.file.every(ast.stmt):
            if not isinstance(loop, Loop):
                continue
            for statement in loop.body:
                named = _named(statement)
                if not named or not all(_is_made(module, v) or _is_copied(module, v) for _, v in named):
                    continue
                try:
                    yield _hoisted(module, loop, statement, named)
                except NotSure as reason:
                    yield NearMiss(reason.line, reason.reason)


def _named(statement: ast.stmt) -> list[tuple[ast.Name, ast.expr]]:
    """Returns the names that a statement binds, each with its value: ``a = x``, and ``a, b = x, y``."""
    match statement:
        case ast.Assign(targets=[ast.Name() as name], value=value):
            return [(name, value)]
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            names = [each for each in targets if isinstance(each, ast.Name)]
            if len(names) == len(targets) == len(values):
                return list(zip(names, values, strict=True))
    return []


def _is_copied(module: ReadModule, value: ast.expr) -> bool:
    """Returns whether a value is ``x.to(device)`` or ``x.cuda()``, and the program reads the tensor x only to copy it
    so.
    """
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name) as tensor, attr="to" | "cuda")):
            pass
        case _:
            return False
    bound = module.file.bindings(name, tensor)
    if len(bound) != 1 or bound[0].kind == "parameter" or name in module.declared_global:
        return False
    if isinstance(bound[0].place, (ast.For, ast.AsyncFor)) or isinstance(module.parent(bound[0].place), Loop):
        return False
    made = bound[0].value
    if made is None or any(isinstance(n, ast.keyword) and n.arg == "requires_grad" for n in ast.walk(made)):
        return False
    if any(module.full(n).endswith((".Parameter", "requires_grad_")) for n in ast.walk(made)):
        return False
    uses = (
        node
        for node in module.file.every(ast.Name)
        if node.id == name and isinstance(node.ctx, ast.Load) and module.file.bindings(name, node) == bound
    )
    return is_tensor(module, tensor) and all(_only_reads(module, use) for use in uses)


def _only_reads(module: ReadModule, use: ast.Name) -> bool:
    above = module.parent(use)
    if isinstance(above, ast.Call):
        return module.is_builtin(above.func, "len", "print")
    if isinstance(above, ast.Attribute):
        return isinstance(above.ctx, ast.Load) and not above.attr.endswith("_")
    return isinstance(above, (ast.BinOp, ast.UnaryOp, ast.Compare)) or (
        isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Load)
    )


def _is_made(module: ReadModule, value: ast.expr) -> bool:
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    names = [operation(module, call)[0] for call in calls]
    rest = [call for call, name in zip(calls, names, strict=True) if name not in WITHIN]
    return bool(set(names) & set(MADE)) and all(is_pure_function(module, call) for call in rest)


def _hoisted(
    module: ReadModule, loop: Loop, statement: ast.stmt, named: list[tuple[ast.Name, ast.expr]]
) -> ChangeSite:  # fmt: skip
    for name, value in named:
        _check(module, loop, statement, name, value)
    line = module.code(statement)
    if "\n" in line or len(loop.body) < 2:
        raise NotSure("it is the only statement of the loop, or has several lines", statement)
    what = f"constant {', '.join(name.id for name, _ in named)}"
    return ChangeSite(statement.lineno, what, (module.insert_before(loop, line), module.delete(statement)))


def _check(module: ReadModule, loop: Loop, statement: ast.stmt, name: ast.Name, value: ast.expr) -> None:
    """Raises NotSure unless a value is the same in each step, and nothing changes it."""
    scope, own = scope_of(module, loop), module.file.bindings(name.id, name)
    if len(own) != 1 or name.id in module.declared_global:
        raise NotSure(f"'{name.id}' is bound in several places", statement)
    if any(changes_name(each, name.id) for each in loop.body if each is not statement):
        raise NotSure(f"'{name.id}' is changed in the loop", statement)
    reads = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    for read in sorted(reads):
        if any(changes_name(each, read) for each in ast.iter_child_nodes(loop) if each is not statement):
            raise NotSure(f"it depends on '{read}', which the loop changes", statement)
    if any(not module.full(node) and not is_setting(module, node) for node in _data(module, value)):
        raise NotSure("it depends on an attribute or an element, which the loop may change", statement)
    if any(_has_contents(module, call) for call in ast.walk(value)):
        raise NotSure("its numbers are in a list with a name, which the loop may change", statement)
    for node in ast.walk(scope):
        if not isinstance(node, ast.Name) or node.id != name.id or module.file.bindings(node.id, node) != own:
            continue
        if node is not name and _may_change(module, node):
            raise NotSure(f"line {node.lineno} may change '{name.id}' in place", statement)


def _has_contents(module: ReadModule, call: ast.AST) -> bool:
    """Returns whether a call is ``torch.tensor(rows)``, whose numbers come from a name and not from literals."""
    contents = call.args if isinstance(call, ast.Call) and module.called(call) == "torch.tensor" else []
    return any(
        isinstance(n, ast.Name) and not module.full(n) and not _is_part(module.parent(n), n)
        for each in contents
        for n in ast.walk(each)
    )


def _is_part(above: ast.AST | None, name: ast.Name) -> bool:
    """Returns whether a name is the function of a call, or an object whose attribute is read."""
    return isinstance(above, ast.Attribute) or (isinstance(above, ast.Call) and above.func is name)


def _data(module: ReadModule, value: ast.expr) -> Iterator[ast.AST]:
    """Yields the attributes and elements that an expression reads. The methods that it calls are left out."""
    methods = {node.func for node in ast.walk(value) if isinstance(node, ast.Call)}
    return (
        node for node in ast.walk(value) if node not in methods and isinstance(node, (ast.Attribute, ast.Subscript))
    )


def _may_change(module: ReadModule, node: ast.Name) -> bool:
    parent = module.parent(node)
    if isinstance(parent, ast.keyword) and parent.arg == "out":
        return True
    return isinstance(parent, ast.AugAssign) or not isinstance(node.ctx, ast.Load)


CHANGE = ConstantsOnce()
