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
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                    loop = in_loop(module, statement)
                    joined, args = operation(module, call)
                    parts = args[0].elts if args and isinstance(args[0], (ast.List, ast.Tuple)) else []
                    if loop is None or joined not in JOINS or len(parts) != 2:
                        continue
                    if isinstance(parts[0], ast.Name) and parts[0].id == name:
                        try:
                            yield _listed(module, statement, call, parts[1], loop)
                        except NotSure as reason:
                            yield NearMiss(reason.line, reason.reason)


def _listed(module: ReadModule, statement: ast.Assign, call: ast.Call, part: ast.expr, loop: Loop) -> ChangeSite:
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
        module.insert_before(loop, f"{name} = [{target.id}]"),
        module.replace(statement, f"{name}.append({module.operand(part)}.clone())"),
        module.insert_after(loop, f"{target.id} = {whole}"),
    )
    return ChangeSite(statement.lineno, f"tensor {target.id}", edits)


CHANGE = GrowingTensors()
