"""Edits that keep a sum or a list of values on the GPU in a loop, and read them behind it."""

from __future__ import annotations

import ast

from tilewright.program.reading.flow import loads, scope_of
from tilewright.program.reading.host_reads import HostRead, NumberKind, host_read, in_loop
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.program.reading.numbers import is_number


def accumulated(
    module: ReadModule, read: HostRead, statement: ast.AugAssign, loop: ast.stmt, kind: NumberKind
) -> tuple[Edit, ...]:
    """Makes the edits of ``total += loss.item()``. Raises NotSure if another use of the total may see a tensor."""
    assert isinstance(statement.target, ast.Name)
    name = statement.target.id
    _check_added(module, read, statement.value)
    _check_total(module, statement, name)
    tensor = module.operand(read.tensor)
    kept = f"{tensor}.detach().double()" if kind == "float" else tensor
    edits = [module.replace(read.call, kept)]
    for use in loads(loop, name):
        _check_rare(module, use, statement, loop)
        edits.append(module.replace(use, f"{kind}({name})"))
    is_tensor = module.spelled("torch.is_tensor", loop)
    return (*edits, module.insert_after(loop, f"{name} = {name}.item() if {is_tensor}({name}) else {name}"))


def appended(module: ReadModule, read: HostRead, name: ast.Name, loop: ast.stmt) -> tuple[Edit, ...]:
    """Makes the edits of ``losses.append(loss.item())``. Raises NotSure if the list is read in the loop."""
    scope = scope_of(module, loop)
    bound = [binding.value for binding in module.file.bindings(name.id, name)]
    if not bound or not all(isinstance(value, ast.List) for value in bound):
        raise NotSure(f"'{name.id}' is not surely a list of this function", read.call)
    for use in loads(scope, name.id):
        parent = module.parent(use)
        if scope_of(module, use) is not scope:
            raise NotSure(f"an inner function reads '{name.id}'", use)
        append = isinstance(parent, ast.Attribute) and parent.attr == "append"
        if append and not _adds_read(module, module.statement(use)):
            raise NotSure(f"line {use.lineno} appends another value to '{name.id}'", use)
        if not append and _within(module, use, loop):
            raise NotSure(f"line {use.lineno} reads '{name.id}' in the loop", use)
    _check_no_try(module, loop, scope)
    is_tensor, each = module.spelled("torch.is_tensor", loop), name.id
    kept = f"{module.operand(read.tensor)}.detach().clone()"
    line = f"{each}[:] = [value.item() if {is_tensor}(value) else value for value in {each}]"
    return module.replace(read.call, kept), module.insert_after(loop, line)


def _adds_read(module: ReadModule, statement: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and host_read(module, n) and in_loop(module, n) for n in ast.walk(statement))


def _within(module: ReadModule, node: ast.AST, loop: ast.stmt) -> bool:
    return any(each is loop for each in module.above(node))


def _check_added(module: ReadModule, read: HostRead, value: ast.expr) -> None:
    """Besides the read, what is added may have only numbers: ``loss.item() * x.size(0)``."""
    while value is not read.call:
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, (ast.Mult, ast.Div)):
            raise NotSure(f"{module.code(read.call)} is used in {module.code(value)}", value)
        left = any(node is read.call for node in ast.walk(value.left))
        if not is_number(module, value.right if left else value.left):
            raise NotSure(f"{module.code(value)} has a factor that is not surely a number", value)
        if not left and isinstance(value.op, ast.Div):
            raise NotSure(f"{module.code(value)} divides by the value", value)
        value = value.left if left else value.right


def _check_total(module: ReadModule, statement: ast.AugAssign, name: str) -> None:
    """The total must begin as a number, and only be added to."""
    scope = scope_of(module, statement)
    bindings = module.file.bindings(name, statement)
    if name in module._declared_global or scope_of(module, statement.target) is not scope:
        raise NotSure(f"'{name}' is a name of another function", statement)
    for binding in bindings:
        added = isinstance(binding.place, ast.AugAssign) and isinstance(binding.place.op, ast.Add)
        if not added and not (binding.kind == "value" and is_number(module, binding.value)):
            raise NotSure(f"'{name}' does not surely begin as a number", statement)
        if added and binding.place is not statement and not _adds_read(module, binding.place):
            raise NotSure(f"line {getattr(binding.place, 'lineno', 1)} adds another value to '{name}'", statement)
    if all(isinstance(binding.place, ast.AugAssign) for binding in bindings):
        raise NotSure(f"'{name}' does not begin in this function", statement)
    for use in loads(scope, name):
        if scope_of(module, use) is not scope:
            raise NotSure(f"an inner function reads '{name}'", statement)
    _check_no_try(module, statement, scope)


def _check_no_try(module: ReadModule, statement: ast.stmt, scope: ast.AST) -> None:
    """An exception in the loop must not show tensors where numbers were."""
    for each in module.above(statement):
        if each is scope:
            return
        if isinstance(each, ast.Try):
            raise NotSure("the loop is in a try statement, after which its values may be read", statement)


def _check_rare(module: ReadModule, use: ast.Name, statement: ast.stmt, loop: ast.stmt) -> None:
    """A use in the loop is read where it stands, so it must not be read in each step."""
    for each in module.above(use):
        if each is loop:
            break
        if isinstance(each, ast.If) and not any(node is use for node in ast.walk(each.test)):
            return
    raise NotSure(f"line {use.lineno} reads '{use.id}' in each step", use)
