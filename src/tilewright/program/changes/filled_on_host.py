"""A tensor of the GPU that a loop fills one element at a time → filled on the host, and copied once.

    x = torch.zeros(n, m, device=device)        x = torch.zeros(n, m)
    for i, row in enumerate(rows):              for i, row in enumerate(rows):
        for j in range(len(row)):                   for j in range(len(row)):
            x[i, j] = row[j]                            x[i, j] = row[j]
                                                x = x.to(device)

Each element is then a store of the host, not a copy to the GPU.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import after, check_last_lines_run, scope_of
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.program.reading.numbers import is_number
from tilewright.program.reading.operations import operation
from tilewright.program.reading.rows import is_tensor
from tilewright.source.source_file import keywords

MADE = ("zeros", "ones", "full", "empty")
LOOPS = (ast.For, ast.While)


class FilledOnHost(ProgramChange):
    name = "filled_on_host"
    about = "fills a tensor on the host and copies it once, instead of one copy to the GPU for each element"
    words = (
        "fill* element*",
        "element wise fill*",
        "element by element fill*",
        "batch filled*",
        "assign* element* loop*",
    )
    findings = ("pageable-copies", "host-late", "launch-calls", "short-kernels")
    gone = (r"aten::(fill_|copy_)$",)
    order = 24
    absent = "no loop of the program fills a tensor of the GPU one element at a time"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for statement in module.file.every(ast.Assign):
            match statement:
                case ast.Assign(targets=[ast.Name() as name], value=ast.Call() as call):
                    device = keywords(call).get("device")
                    if (
                        device is None
                        or ast.unparse(device) == "'cpu'"
                        or operation(module, call)[0] not in MADE
                        or not module.full(call.func)
                    ):
                        continue
                    try:
                        if (site := _site(module, statement, name, call, device)) is not None:
                            yield site
                    except NotSure as reason:
                        yield NearMiss(reason.line, reason.reason)


def _site(
    module: ReadModule, statement: ast.Assign, name: ast.Name, call: ast.Call, device: ast.expr
) -> ChangeSite | None:
    following = after(module, statement)
    uses = [n for n in ast.walk(scope_of(module, statement)) if isinstance(n, ast.Name) and n.id == name.id]
    first = next((each for each in following if not set(ast.walk(each)).isdisjoint(uses)), None)
    if not isinstance(first, LOOPS) or first.orelse:
        return None
    inside = [use for use in ast.walk(first) if isinstance(use, ast.Name) and use.id == name.id]
    by_use = {use: _element_store(module, use) for use in inside}
    stores = [store for store in by_use.values() if store is not None]
    if not stores:
        return None
    if other := next((use for use, store in by_use.items() if store is None), None):
        raise NotSure(f"line {other.lineno} reads '{name.id}' in the loop", other)
    if store := next((each for each in stores if not _is_of_host(module, each.value)), None):
        raise NotSure(f"line {store.lineno} stores a tensor, which may be of the GPU", store)
    if len(call.keywords) > 1 and any(each.arg in ("requires_grad", "out", "pin_memory") for each in call.keywords):
        raise NotSure(f"'{name.id}' is made in a special way", statement)
    check_last_lines_run(first)
    if not isinstance(device, (ast.Name, ast.Constant, ast.Attribute)):
        raise NotSure(f"{module.code(device)} may be another device later", device)
    if any(
        isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load) and n.id in _names(device) for n in ast.walk(first)
    ):
        raise NotSure(f"the loop changes {module.code(device)}", first)
    if (
        any(scope_of(module, use) is not scope_of(module, statement) for use in uses)
        or name.id in module.declared_global
    ):
        raise NotSure(f"an inner function reads '{name.id}'", statement)
    copied = module.insert_after(first, f"{name.id} = {name.id}.to({module.code(device)})")
    return ChangeSite(stores[0].lineno, f"tensor {name.id}", (_without_device(module, call), copied))


def _is_of_host(module: ReadModule, value: ast.expr) -> bool:
    """Returns whether a stored value is a number, or an element of what a loop goes over that is no tensor."""
    if is_number(module, value) or isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Call):
        return module.is_builtin(value.func, "int", "float", "len", "bool") or operation(module, value)[0] == "item"
    while isinstance(value, ast.Subscript):
        value = value.value
    if not isinstance(value, ast.Name) or is_tensor(module, value):
        return False
    bound = module.file.bindings(value.id, value)
    return bool(bound) and all(isinstance(each.place, (ast.For, ast.arg)) for each in bound)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _element_store(module: ReadModule, use: ast.Name) -> ast.Assign | None:
    """Returns the statement ``x[i, j] = value`` of a use of x, whose index has no slice; None for another use."""
    place = module.parent(use)
    while isinstance(place, ast.Subscript) and isinstance(place.ctx, ast.Load):
        place = module.parent(place)
    match place:
        case ast.Subscript(ctx=ast.Store(), slice=index) if not any(isinstance(n, ast.Slice) for n in ast.walk(index)):
            statement = module.parent(place)
            if isinstance(statement, ast.Assign) and statement.targets == [place]:
                return statement if use not in set(ast.walk(statement.value)) else None
    return None


def _without_device(module: ReadModule, call: ast.Call) -> Edit:
    """Makes the edit that removes ``, device=…``, with the comma before it."""
    given = next(each for each in call.keywords if each.arg == "device")
    others = [*call.args, *(each.value for each in call.keywords if each is not given)]
    start, end = module.span(given)
    before = [module.span(each)[1] for each in others if module.span(each)[1] <= start]
    if not before:
        raise NotSure("its device is its first argument", call)
    if module.text[max(before) : start].strip() != ",":
        raise NotSure("a comment is between its arguments", call)
    return Edit(max(before), end, "")


CHANGE = FilledOnHost()
