"""A value that is printed in each step → printed ten steps at a time, so that the host waits once for all of them.

    for step in range(steps):           late_prints = []
        print(step, loss.item())        for step in range(steps):
                                            late_prints.append(lambda step=step, loss=…: print(step, loss.item()))
                                            if len(late_prints) == 10:
                                                while late_prints: late_prints.pop(0)()

The same lines are printed in the same order. Their values are taken at the time at which they were printed before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.printed import LATE
from tilewright.program.reading.flow import changes_name, check_last_lines_run
from tilewright.program.reading.host_reads import HostRead, Loop, host_read, in_loop
from tilewright.program.reading.module import Edit, NotSure, ReadModule
from tilewright.program.reading.numbers import is_number

CLOCKS = ("time.time", "time.perf_counter", "time.monotonic", "torch.cuda.Event", "time.process_time")


class LatePrints(ProgramChange):
    name = "late_prints"
    about = "prints values of the GPU ten steps at a time, so that the host does not wait for them in each step"
    words = ("print* each step", "print* every step", "print* loss", "log* each step", "log* every step")
    findings = ("host-sync", "host-late", "idle")
    gone = (r"aten::item|_local_scalar_dense|cudaStreamSynchronize|cudaDeviceSynchronize",)
    order = 22
    absent = "no loop of the program prints a value of the GPU in each step"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for statement in module.file.every(ast.Expr):
            call, loop = statement.value, in_loop(module, statement)
            if loop is None or not _is_print(module, call) or statement not in loop.body:
                continue
            reads = [
                read for each in ast.walk(call) if isinstance(each, ast.Call) and (read := host_read(module, each))
            ]
            if not reads:
                continue
            try:
                yield _site(module, statement, loop, reads)
            except NotSure as reason:
                yield NearMiss(reason.line, reason.reason)


def _is_print(module: ReadModule, call: ast.AST) -> bool:
    return isinstance(call, ast.Call) and module.is_builtin(call.func, "print")


def _site(module: ReadModule, statement: ast.Expr, loop: Loop, reads: list[HostRead]) -> ChangeSite:
    _check_loop(module, statement, loop)
    name, edits, given = module.unused("late_prints"), list[Edit](), dict[str, str]()
    _captured(module, statement.value, {read.call: read for read in reads}, loop, edits, given)
    start, end = module.span(statement)
    line, at = "", start
    for edit in sorted(edits, key=lambda each: each.start):
        line, at = line + module.text[at : edit.start] + edit.new, edit.end
    line = (line + module.text[at:end]).replace("\r\n", "\n")
    now = ", ".join(f"{key}={value}" for key, value in given.items())
    flush = f"while {name}:"
    whole = [
        module.insert_before(loop, f"{name} = []"),
        Edit(start, end, f"{name}.append(lambda {now}: {line})"),
        module.insert_after(statement, f"if len({name}) == {LATE}:", f"    {flush}", f"        {name}.pop(0)()"),
        module.insert_after(loop, flush, f"    {name}.pop(0)()"),
    ]
    for other in _other_prints(module, statement, loop):
        whole.append(module.insert_before(other, flush, f"    {name}.pop(0)()"))
    return ChangeSite(statement.lineno, "printed value", tuple(whole), f"lines come up to {LATE} steps later")


def _check_loop(module: ReadModule, statement: ast.Expr, loop: Loop) -> None:
    call = statement.value
    assert isinstance(call, ast.Call)
    if any(keyword.arg == "flush" for keyword in call.keywords):
        raise NotSure("its line is flushed at once", statement)
    if loop.orelse:
        raise NotSure("the loop has an else", loop)
    check_last_lines_run(loop)
    if any(isinstance(each, ast.Try) for each in module.above(loop)):
        raise NotSure("the loop is in a try statement: after an exception, lines could be missing", loop)
    if clock := next((node for node in ast.walk(loop) if module.full(node) in CLOCKS), None):
        raise NotSure(f"line {getattr(clock, 'lineno', 0)} measures a time, and its print waits for the GPU", statement)
    printing = {
        each.name
        for other in module.program
        for each in other.file.functions
        if any(_is_print(other, node) for node in ast.walk(each))
    }
    for node in ast.walk(loop):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in printing or called == "input":
                raise NotSure(f"line {node.lineno} calls '{called}', which prints too", node)


def _other_prints(module: ReadModule, statement: ast.stmt, loop: Loop) -> list[ast.stmt]:
    found = [module.statement(node) for node in ast.walk(loop) if _is_print(module, node)]
    return [each for each in dict.fromkeys(found) if each is not statement]


def _captured(
    module: ReadModule, node: ast.AST, reads: dict[ast.Call, HostRead], loop: Loop, edits: list[Edit],
    given: dict[str, str],
) -> None:  # fmt: skip
    """Finds the values of a line that must be taken now. Adds them to ``given`` under the names by which the late print
    reads them. Adds to ``edits`` the replacement of the reads by these names.
    """
    if isinstance(node, ast.Call) and node in reads:
        tensor = reads[node].tensor
        taken = f"{module.operand(tensor)}.detach().clone()"
        if isinstance(tensor, ast.Name) and tensor.id not in given:
            given[tensor.id] = taken
        else:
            name = _next("value", given)
            given[name] = taken
            edits.append(module.replace(node, f"{name}.{reads[node].tail}"))
        return
    if isinstance(node, ast.Name) and not module.is_builtin(node, node.id) and not module.full(node):
        _check_unchanged(module, node, loop)
        given.setdefault(node.id, node.id)
        return
    plain = isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)) and not any(
        each in reads for each in ast.walk(node)
    )
    method = (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Constant)
    )
    if plain and not method and not _is_print(module, node):
        name = _next("value", given)
        edits.append(module.replace(node, name))
        given[name] = module.argument(node)
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute) and isinstance(node, ast.Call) and child is node.func:
            if isinstance(child.value, ast.Constant):
                continue  # "…".format(…)
            child = child.value
        _captured(module, child, reads, loop, edits, given)


def _next(base: str, given: dict[str, str]) -> str:
    return next(name for n in range(1, 100) if (name := f"{base}{n}") not in given)


def _check_unchanged(module: ReadModule, name: ast.Name, loop: Loop) -> None:
    """Raises NotSure if the object of a name may change before its line is printed: the late print keeps only the
    object.
    """
    for node in ast.walk(loop):
        match node:
            case ast.AugAssign(target=ast.Name(id=found), value=value) if found == name.id:
                added = is_number(module, value) or (
                    isinstance(value, ast.Call) and host_read(module, value) is not None
                )
                if not added:
                    raise NotSure(f"'{name.id}' may be changed in place before its line is printed", name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr="append" | "update" | "extend")):
                if found == name.id:
                    raise NotSure(f"'{name.id}' is changed before its line is printed", name)
            case ast.Subscript(value=ast.Name(id=found), ctx=ast.Store()) if found == name.id:
                raise NotSure(f"'{name.id}' is changed before its line is printed", name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr=method)) if found == name.id:
                if changes_name(node, name.id) and method.endswith("_"):
                    raise NotSure(f"'{name.id}' is changed before its line is printed", name)


CHANGE = LatePrints()
