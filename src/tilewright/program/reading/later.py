"""Makes edits that keep a sum or a list of values on the GPU in a loop, and read them after it."""

from __future__ import annotations

import ast

from tilewright.program.reading.flow import loads, scope_of
from tilewright.program.reading.host_reads import HostRead, NumberKind, host_read, in_loop, kind_of
from tilewright.program.reading.layers import settings
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
    tensor, is_tensor = module.operand(read.tensor), module.spelled("torch.is_tensor", loop)
    of_numpy = read.tail != "item()"  # NumPy keeps such a sum in float32
    last = f"{name}.{read.tail}{'[()]' if of_numpy else ''} if {is_tensor}({name}) else {name}"
    kept = f"{tensor}.detach()" if of_numpy else f"{tensor}.detach().double()" if kind == "float" else tensor
    edits = [module.replace(read.call, kept)]
    for use in loads(loop, name):
        _check_rare(module, use, loop)
        edits.append(module.replace(use, f"({last})" if of_numpy else f"{kind}({name})"))
    return (*edits, module.insert_after(loop, f"{name} = {last}"))


def averaged(
    module: ReadModule, read: HostRead, statement: ast.Assign, name: ast.Name, loop: ast.stmt
) -> tuple[Edit, ...]:
    """Makes the edits of ``mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()``.

    Raises NotSure unless the value is computed only from numbers, from its old value and from reads, all in float64.
    """
    scope = scope_of(module, statement)
    bindings = module.file.bindings(name.id, statement)
    if name.id in module.declared_global or any(scope_of(module, use) is not scope for use in loads(scope, name.id)):
        raise NotSure(f"'{name.id}' is also a name of another function", statement)
    begins = [binding for binding in bindings if binding.place is not statement]
    for binding in begins:
        none = isinstance(binding.value, ast.Constant) and binding.value.value is None
        if binding.kind != "value" or not (none or is_number(module, binding.value)):
            raise NotSure(f"'{name.id}' is not known to begin as a number", statement)
    own = {use for use in ast.walk(statement.value) if isinstance(use, ast.Name) and use.id == name.id}
    if not begins or not own or not _is_mean(module, statement.value, name.id):
        raise NotSure(f"{module.code(read.call)} is used at once, not summed or collected", read.call)
    added = (each.target for each in ast.walk(loop) if isinstance(each, ast.AugAssign))
    if any(ast.unparse(target) == module.code(read.tensor) for target in added):
        raise NotSure(f"{module.code(read.tensor)} is changed in place", statement)
    _check_no_try(module, statement, scope)
    edits = [module.replace(read.call, f"{module.operand(read.tensor)}.detach().double()")]
    for use in loads(loop, name.id):
        if use not in own and not _is_none_test(module.parent(use)):
            _check_rare(module, use, loop)
            edits.append(module.replace(use, f"float({name.id})"))
    is_tensor = module.spelled("torch.is_tensor", loop)
    last = f"{name.id} = {name.id}.item() if {is_tensor}({name.id}) else {name.id}"
    return (*edits, module.insert_after(loop, last))


def _is_none_test(node: ast.AST | None) -> bool:
    match node:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
    return False


def _is_mean(module: ReadModule, node: ast.expr, name: str) -> bool:
    """Returns whether an expression has only sums, products and quotients of numbers, ``name`` and reads of floats."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return all(_is_mean(module, each, name) for each in (left, right))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            plain = _is_none_test(test) or not any(isinstance(n, (ast.Call, ast.Name)) for n in ast.walk(test))
            return plain and all(_is_mean(module, each, name) for each in (body, orelse))
        case ast.Name(id=found) if found == name:
            return True
        case ast.Call() if (read := host_read(module, node)) is not None:
            loop = in_loop(module, node)
            return loop is not None and kind_of(module, read.tensor, loop) == "float"
    return is_number(module, node)


def appended(module: ReadModule, read: HostRead, name: ast.Name, loop: ast.stmt) -> tuple[Edit, ...]:
    """Makes the edits of ``losses.append(loss.item())``. Raises NotSure if the list is read in the loop."""
    scope = scope_of(module, loop)
    bound = [binding.value for binding in module.file.bindings(name.id, name)]
    if not bound or not all(isinstance(value, ast.List) for value in bound):
        raise NotSure(f"'{name.id}' is not known to be a list of this function", read.call)
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
    line = f"{each}[:] = [value.{read.tail} if {is_tensor}(value) else value for value in {each}]"
    return module.replace(read.call, kept), module.insert_after(loop, line)


def appended_elsewhere(
    module: ReadModule, read: HostRead, kept: ast.Attribute | ast.Subscript, loop: ast.stmt
) -> tuple[Edit, ...]:
    """Makes the edits of ``self.losses.append(loss.item())`` and ``history["loss"].append(loss.item())``.

    Raises NotSure if the target may not be a list, or if the loop, or a method that the loop calls, may read it.
    """
    text = module.code(kept)
    if not _begins_as_list(module, kept):
        raise NotSure(f"'{text}' is not known to be a list of this program", read.call)
    root: ast.expr = kept
    while isinstance(root, ast.Subscript):
        root = root.value
    name = root.attr if isinstance(root, ast.Attribute) else getattr(root, "id", "")
    for node in ast.walk(loop):
        same = isinstance(node, (ast.Name, ast.Attribute)) and module.code(node) == module.code(root)
        if same and not _is_append(module, node):
            raise NotSure(f"line {getattr(node, 'lineno', 0)} reads '{text}' in the loop", node)
    called = {n.func.attr for n in ast.walk(loop) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    for function in module.file.functions:
        inside = any(isinstance(n, ast.Attribute) and n.attr == name for n in ast.walk(function))
        if function.name in called and inside and isinstance(root, ast.Attribute):
            raise NotSure(f"{function.name}, which the loop calls, may read '{text}'", read.call)
    _check_no_try(module, loop, scope_of(module, loop))
    is_tensor = module.spelled("torch.is_tensor", loop)
    line = f"{text}[:] = [value.{read.tail} if {is_tensor}(value) else value for value in {text}]"
    return module.replace(read.call, f"{module.operand(read.tensor)}.detach().clone()"), module.insert_after(loop, line)


def _begins_as_list(module: ReadModule, kept: ast.Attribute | ast.Subscript) -> bool:
    if isinstance(kept, ast.Attribute):
        values = settings(module, kept)
        return bool(values) and all(isinstance(value, ast.List) for value in values or ())
    if not isinstance(kept.slice, ast.Constant) or not isinstance(kept.value, (ast.Name, ast.Attribute)):
        return False
    found = module.file.values(kept.value) if isinstance(kept.value, ast.Name) else settings(module, kept.value) or ()
    return bool(found) and all(_list_at(module, value, kept.slice.value) for value in found)


def _list_at(module: ReadModule, value: ast.AST, key: object) -> bool:
    match value:
        case ast.Dict(keys=keys, values=values):
            return any(
                isinstance(k, ast.Constant) and k.value == key and isinstance(v, ast.List)
                for k, v in zip(keys, values, strict=True)
            )
        case ast.Call(args=[kind]):
            return module.called(value) == "collections.defaultdict" and module.is_builtin(kind, "list")
    return False


def _is_append(module: ReadModule, node: ast.AST) -> bool:
    above = module.parent(node)
    while isinstance(above, ast.Subscript):
        above = module.parent(above)
    return isinstance(above, ast.Attribute) and above.attr == "append"


def _adds_read(module: ReadModule, statement: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and host_read(module, n) and in_loop(module, n) for n in ast.walk(statement))


def _within(module: ReadModule, node: ast.AST, loop: ast.stmt) -> bool:
    return any(each is loop for each in module.above(node))


def _check_added(module: ReadModule, read: HostRead, value: ast.expr) -> None:
    """Raises NotSure if an added value has parts that are neither the read nor numbers. ``loss.item() * x.size(0)`` is
    allowed.
    """
    while value is not read.call:
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, (ast.Mult, ast.Div)):
            raise NotSure(f"{module.code(read.call)} is used in {module.code(value)}", value)
        left = any(node is read.call for node in ast.walk(value.left))
        if not is_number(module, value.right if left else value.left):
            raise NotSure(f"{module.code(value)} has a factor that is not known to be a number", value)
        if not left and isinstance(value.op, ast.Div):
            raise NotSure(f"{module.code(value)} divides by the value", value)
        value = value.left if left else value.right


def _check_total(module: ReadModule, statement: ast.AugAssign, name: str) -> None:
    """Raises NotSure unless the total begins as a number and the loop only adds to it."""
    scope = scope_of(module, statement)
    bindings = module.file.bindings(name, statement)
    if name in module.declared_global or scope_of(module, statement.target) is not scope:
        raise NotSure(f"'{name}' is a name of another function", statement)
    for binding in bindings:
        added = isinstance(binding.place, ast.AugAssign) and isinstance(binding.place.op, ast.Add)
        if not added and not (binding.kind == "value" and is_number(module, binding.value)):
            raise NotSure(f"'{name}' is not known to begin as a number", statement)
        if added and binding.place is not statement and not _adds_read(module, binding.place):
            raise NotSure(f"line {getattr(binding.place, 'lineno', 1)} adds another value to '{name}'", statement)
    if all(isinstance(binding.place, ast.AugAssign) for binding in bindings):
        raise NotSure(f"'{name}' does not begin in this function", statement)
    for use in loads(scope, name):
        if scope_of(module, use) is not scope:
            raise NotSure(f"an inner function reads '{name}'", statement)
    _check_no_try(module, statement, scope)


def _check_no_try(module: ReadModule, statement: ast.stmt, scope: ast.AST) -> None:
    """Raises NotSure if the loop is in a try statement: after an exception, the program would find tensors instead of
    numbers.
    """
    for each in module.above(statement):
        if each is scope:
            return
        if isinstance(each, ast.Try):
            raise NotSure("the loop is in a try statement, after which its values may be read", statement)


def _check_rare(module: ReadModule, use: ast.Name, loop: ast.stmt) -> None:
    """Raises NotSure if a use in the loop is reached in each step: the change reads the value there."""
    for each in module.above(use):
        if each is loop:
            break
        if isinstance(each, ast.If) and not any(node is use for node in ast.walk(each.test)):
            return
    raise NotSure(f"line {use.lineno} reads '{use.id}' in each step", use)
