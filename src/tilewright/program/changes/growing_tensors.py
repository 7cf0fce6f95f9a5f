"""A tensor that each step copies to append a part → a list of parts that is concatenated once, after the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import check_last_lines_run, scope_of
from tilewright.program.reading.host_reads import Loop, in_loop
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.operations import operation

JOINS = ("cat", "concat", "concatenate", "hstack", "vstack")


class GrowingTensors(ProgramChange):
    name = "growing_tensors"
    about = "collects parts in a list and concatenates them once, instead of copying all of them in each step"
    words = ("growing tensor*", "cat loop*", "torch.cat loop*", "concatenat* loop*", "quadratic cop*")
    findings = ("short-kernels", "launch-calls", "hot-kernel")
    gone = (r"aten::cat$",)
    order = 55
    absent = "no loop of the program adds parts to a tensor"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for statement in module.file.every(ast.Assign):
            value, first = _joined(statement.value)
            match statement.targets, value:
                case [ast.Name(id=name)], ast.Call() as call:
                    loop = in_loop(module, statement)
                    joined, args = operation(module, call)
                    parts = args[0].elts if args and isinstance(args[0], (ast.List, ast.Tuple)) else []
                    if loop is None or joined not in JOINS or len(parts) != 2:
                        continue
                    if first is not None and (not _tests(statement, name) or module.code(parts[1]) != first.id):
                        continue
                    if isinstance(parts[0], ast.Name) and parts[0].id == name:
                        try:
                            yield _listed(module, statement, call, parts[1], loop, maybe=first is not None)
                        except NotSure as reason:
                            yield NearMiss(reason.line, reason.reason)


def _joined(value: ast.expr) -> tuple[ast.expr, ast.Name | None]:
    """Returns the two results of ``part if x is None else torch.cat(…)``: the call, and the part. For another value,
    returns the value and None.
    """
    match value:
        case ast.IfExp(
            test=ast.Compare(left=ast.Name(), ops=[op], comparators=[ast.Constant(value=None)]), body=one, orelse=other
        ):
            part, call = (one, other) if isinstance(op, ast.Is) else (other, one)
            if isinstance(part, ast.Name) and isinstance(op, (ast.Is, ast.IsNot)):
                return call, part
    return value, None


def _tests(statement: ast.Assign, name: str) -> bool:
    """Returns whether ``x = part if y is None else …`` tests the name that it binds."""
    test = statement.value.test if isinstance(statement.value, ast.IfExp) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == name


def _listed(
    module: ReadModule, statement: ast.Assign, call: ast.Call, part: ast.expr, loop: Loop, *, maybe: bool
) -> ChangeSite:
    """maybe: whether the tensor may be None before its first part."""
    target = statement.targets[0]
    assert isinstance(target, ast.Name)
    own = set(ast.walk(statement))
    for node in ast.walk(loop):
        if isinstance(node, ast.Name) and node.id == target.id and node not in own:
            raise NotSure(f"line {node.lineno} reads '{target.id}' in the loop", node)
    check_last_lines_run(loop)
    if any(isinstance(n, ast.Name) and n.id == target.id and scope_of(module, n) is not scope_of(module, loop)
           for n in ast.walk(scope_of(module, loop))):  # fmt: skip
        raise NotSure(f"an inner function reads '{target.id}'", statement)
    name = module.unused(f"{target.id}_parts")
    start, end = module.span(call.args[0])
    whole = f"{module.text[module.span(call)[0] : start]}{name}{module.text[end : module.span(call)[1]]}"
    edits = (
        module.insert_before(loop, f"{name} = [] if {target.id} is None else [{target.id}]" if maybe
                             else f"{name} = [{target.id}]"),
        module.replace(statement, f"{name}.append({module.operand(part)}.clone())"),
        module.insert_after(loop, f"{target.id} = {whole}" + (f" if {name} else None" if maybe else "")),
    )  # fmt: skip
    return ChangeSite(statement.lineno, f"tensor {target.id}", edits)


CHANGE = GrowingTensors()
