"""Elements of a tensor that the host reads one at a time in a loop → one copy of the tensor before the loop.

    for i, env in enumerate(envs):          actions_cpu = actions.cpu() if torch.is_tensor(actions) else actions
        env.step(actions[i].item())         for i, env in enumerate(envs):
                                                env.step(actions_cpu[i].item())

The host then waits for the GPU once, not once for each element.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import changes_name, scope_of
from tilewright.program.reading.host_reads import Loop
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.rows import is_tensor
from tilewright.source.source_file import stored

READS = ("item", "tolist")
BUILTINS = ("int", "float", "bool")


class ElementReads(ProgramChange):
    name = "element_reads"
    about = "copies a tensor to the host once before a loop, instead of one element in each step of the loop"
    words = ("element by element", "read* element*", "element* in a loop", "copy once tolist")
    findings = ("host-sync", "host-late", "idle")
    order = 23
    absent = "no loop of the program reads elements of a tensor one at a time"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for loop in module.file.every(ast.For):
            found: dict[str, list[ast.Name]] = {}
            for name in _reads(module, loop):
                found.setdefault(name.id, []).append(name)
            for text, names in found.items():
                try:
                    yield _site(module, loop, text, names)
                except NotSure as reason:
                    yield NearMiss(reason.line, reason.reason)


def _reads(module: ReadModule, loop: ast.For) -> Iterator[ast.Name]:
    """Yields a name for each read of a tensor's element in the loop, if the index uses the variable of this loop and no
    inner loop surrounds the read.
    """
    targets = stored(loop.target)
    for node in ast.walk(loop):
        match node:
            case ast.Call(func=ast.Attribute(value=read, attr=method), args=[], keywords=[]) if method in READS:
                sure = method == "item"
            case ast.Call(func=function, args=[read], keywords=[]) if module.is_builtin(function, *BUILTINS):
                sure = False
            case _:
                continue
        inner, depth = read, 0
        while isinstance(inner, ast.Subscript):
            inner, depth = inner.value, depth + 1
        if not isinstance(inner, ast.Name) or not isinstance(read, ast.Subscript) or inner.id in targets:
            continue
        index = {n.id for n in ast.walk(read) if isinstance(n, ast.Name)} - {inner.id}
        plain = all(not isinstance(n, ast.Call) for n in ast.walk(read))
        around = next((each for each in module.above(read) if isinstance(each, Loop)), None)
        if plain and index & targets and around is loop and (sure or is_tensor(module, inner)):
            yield inner


def _site(module: ReadModule, loop: ast.For, name: str, reads: list[ast.Name]) -> ChangeSite:
    scope = scope_of(module, loop)
    if name in module.declared_global or not module.file.bindings(name, reads[0]):
        raise NotSure(f"'{name}' is not of this function", reads[0])
    for value in (each.value for each in module.file.bindings(name, reads[0]) if each.value is not None):
        listed = isinstance(value, (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Tuple))
        inside = value.body if isinstance(value, ast.IfExp) else value
        if listed or (isinstance(inside, ast.Call) and _is_of_host(module, inside)):
            raise NotSure(f"'{name}' is no tensor of the GPU", reads[0])
    if any(changes_name(statement, name) for statement in loop.body):
        raise NotSure(f"the loop changes '{name}'", loop)
    uses = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == name]
    if other := next((n for n in uses if n not in reads and _may_write(module, n)), None):
        raise NotSure(f"line {other.lineno} may change '{name}' in the loop", other)
    if scope_of(module, reads[0]) is not scope:
        raise NotSure(f"an inner function reads '{name}'", reads[0])
    copy, torch = module.unused(f"{name}_cpu"), module.spelled("torch.is_tensor", loop)
    line = f"{copy} = {name}.cpu() if {torch}({name}) else {name}"
    edits = (module.insert_before(loop, line), *(module.replace(node, copy) for node in reads))
    return ChangeSite(reads[0].lineno, f"elements of {name}", edits)


def _is_of_host(module: ReadModule, value: ast.Call) -> bool:
    method = value.func.attr if isinstance(value.func, ast.Attribute) else ""
    listed = module.is_builtin(value.func, "list", "sorted", "zip", "range", "dict")
    return listed or method in ("cpu", "numpy", "tolist") or module.called(value).startswith("numpy.")


def _may_write(module: ReadModule, node: ast.Name) -> bool:
    """Returns whether a use other than a read may change the tensor: an argument of a call, or another name for it."""
    above = module.parent(node)
    while isinstance(above, ast.Subscript) and above.value is node and isinstance(above.ctx, ast.Load):
        node, above = above, module.parent(above)  # type: ignore[assignment]
    if isinstance(above, (ast.Compare, ast.BinOp, ast.If, ast.While)):
        return False
    builtin = isinstance(above, ast.Call) and module.is_builtin(above.func, "len", "print", *BUILTINS)
    return not builtin and not (isinstance(above, ast.Attribute) and not above.attr.endswith("_"))


CHANGE = ElementReads()
