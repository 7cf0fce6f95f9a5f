"""A constant that a loop makes anew in each step → made once before the loop: masks, positions, tables of numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import changes_name, scope_of
from tilewright.program.reading.host_reads import Loop
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.operations import operation

MADE = ("arange", "tril", "triu", "eye", "linspace", "tensor", "tril_indices", "triu_indices")
"""Tensors that hold more than one repeated number: they are made to be read."""
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
                match statement:
                    case ast.Assign(targets=[ast.Name() as name], value=value) if _is_made(module, value):
                        try:
                            yield _hoisted(module, loop, statement, name, value)
                        except NotSure as reason:
                            yield NearMiss(reason.line, reason.reason)


def _is_made(module: ReadModule, value: ast.expr) -> bool:
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    names = [operation(module, call)[0] for call in calls]
    return bool(set(names) & set(MADE)) and all(name in WITHIN for name in names)


def _hoisted(module: ReadModule, loop: Loop, statement: ast.Assign, name: ast.Name, value: ast.expr) -> ChangeSite:
    scope = scope_of(module, loop)
    if len(module.file.bindings(name.id, name)) != 1 or name.id in module._declared_global:
        raise NotSure(f"'{name.id}' is bound in several places", statement)
    if any(changes_name(each, name.id) for each in loop.body if each is not statement):
        raise NotSure(f"'{name.id}' is changed in the loop", statement)
    reads = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    for read in sorted(reads):
        if any(changes_name(each, read) for each in ast.iter_child_nodes(loop) if each is not statement):
            raise NotSure(f"it depends on '{read}', which the loop changes", statement)
    if any(isinstance(node, (ast.Attribute, ast.Subscript)) and not module.full(node) for node in _data(module, value)):
        raise NotSure("it depends on an attribute or an element, which the loop may change", statement)
    if any(_has_contents(module, call) for call in ast.walk(value)):
        raise NotSure("its numbers are in a list with a name, which the loop may change", statement)
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name.id and node is not name and _may_change(module, node):
            raise NotSure(f"line {node.lineno} may change '{name.id}' in place", statement)
    line = module.code(statement)
    if "\n" in line or len(loop.body) < 2:
        raise NotSure("it is the only statement of the loop, or has several lines", statement)
    return ChangeSite(
        statement.lineno, f"constant {name.id}", (module.insert_before(loop, line), module.delete(statement))
    )


def _has_contents(module: ReadModule, call: ast.AST) -> bool:
    """Returns whether a call is ``torch.tensor(rows)`` with contents that are not written there."""
    contents = call.args if isinstance(call, ast.Call) and module.called(call) == "torch.tensor" else []
    return any(isinstance(n, ast.Name) and not module.full(n) for each in contents for n in ast.walk(each))


def _data(module: ReadModule, value: ast.expr) -> Iterator[ast.AST]:
    """Yields the attributes and elements that are read, without the methods of calls."""
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
