"""The same value of a tensor that the host reads several times → read once.

    if loss.item() < best:                          loss_value = loss.item()
        best = loss.item()                          if loss_value < best:
    print(step, loss.item())                            best = loss_value
                                                    print(step, loss_value)

The reads are in statements of one block that follow each other, and nothing between them can change the tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.flow import changes_name
from tilewright.program.reading.host_reads import HostRead, host_read, in_loop
from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.purity import is_pure

SOMETIMES = (ast.BoolOp, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
"""Expressions whose parts are not always evaluated."""


class RepeatedReads(ProgramChange):
    name = "repeated_reads"
    about = "reads a value of the GPU once, instead of waiting for it at each use"
    words = ("repeated read*", "read once", "same item() twice", "read* several times")
    findings = ("host-sync", "host-late", "idle")
    gone = (r"aten::item|_local_scalar_dense",)
    order = 25
    absent = "no loop of the program reads the same value twice"

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        for loop in (each for each in module.file.nodes if isinstance(each, (ast.For, ast.While))):
            done: set[ast.Call] = set()
            for place, statement in enumerate(loop.body):
                for read in _always(module, statement):
                    if read.call not in done:
                        try:
                            reads = _same(module, loop.body[place:], read)
                            done.update(reads)
                            if len(reads) > 1:
                                yield _site(module, statement, read, reads)
                        except NotSure as reason:
                            yield NearMiss(reason.line, reason.reason)


def _always(module: ReadModule, statement: ast.stmt) -> Iterator[HostRead]:
    """Yields the reads ``name.item()`` that a statement does in any case."""
    whole = statement.test if isinstance(statement, ast.If) else statement
    if isinstance(whole, ast.stmt) and not isinstance(whole, (ast.Assign, ast.Expr)):
        return
    waiting: list[ast.AST] = [whole]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, SOMETIMES):
            continue
        read = host_read(module, node) if isinstance(node, ast.Call) and in_loop(module, node) else None
        if read is not None and isinstance(read.tensor, ast.Name) and read.tail == "item()":
            yield read
        waiting.extend(ast.iter_child_nodes(node))


def _same(module: ReadModule, statements: list[ast.stmt], read: HostRead) -> list[ast.Call]:
    """Returns the reads of the same value in these statements: up to the first one that may change the tensor."""
    assert isinstance(read.tensor, ast.Name)
    found = []
    for statement in statements:
        if not is_pure(module, statement) or changes_name(statement, read.tensor.id):
            break
        for node in ast.walk(statement):
            other = host_read(module, node) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and other is not None and module.code(node) == module.code(read.call):
                found.append(node)
    return found


def _site(module: ReadModule, statement: ast.stmt, read: HostRead, reads: list[ast.Call]) -> ChangeSite:
    assert isinstance(read.tensor, ast.Name)
    name = module.unused(f"{read.tensor.id}_value")
    if any(isinstance(each, ast.arg) and each.arg == name for each in module.file.nodes):
        raise NotSure(f"the name '{name}' is taken", statement)
    edits = [module.insert_before(statement, f"{name} = {module.code(read.call)}")]
    edits += [module.replace(each, name) for each in reads]
    return ChangeSite(read.call.lineno, f"{len(reads)} reads of {module.code(read.call)}", tuple(edits))


CHANGE = RepeatedReads()
