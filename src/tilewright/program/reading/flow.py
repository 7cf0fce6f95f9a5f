"""Follows values through the statements of one block, and says what may be moved or deleted there.

Only straight-line code is followed: a name's last binding before its use, in the same list of statements. If a value
cannot be followed, the result is None, never a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from tilewright.program.reading.module import NotSure, ReadModule
from tilewright.program.reading.purity import is_pure
from tilewright.source.source_file import Function, stored

Bound: TypeAlias = ast.stmt


def block_of(module: ReadModule, statement: ast.stmt) -> list[ast.stmt]:
    """Returns the list of statements that a statement is in."""
    parent = module.parent(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def before(module: ReadModule, statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yields the statements of the same block before a statement, the nearest first."""
    block = block_of(module, statement)
    return reversed(block[: block.index(statement)])


def after(module: ReadModule, statement: ast.stmt) -> list[ast.stmt]:
    """Returns the statements of the same block after a statement."""
    block = block_of(module, statement)
    return block[block.index(statement) + 1 :]


def last_change(module: ReadModule, name: str, at: ast.stmt) -> ast.stmt | None:
    """Returns the nearest statement before ``at`` in its block that binds ``name`` or calls a method ``name.…_()``."""
    return next((each for each in before(module, at) if changes_name(each, name)), None)


def changes_name(statement: ast.AST, name: str) -> bool:
    """Returns whether a statement, or one in it, binds a name, deletes it, or changes its tensor in place."""
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=found, ctx=ast.Store() | ast.Del()) if found == name:
                return True
            case ast.FunctionDef(name=found) | ast.ClassDef(name=found) | ast.AsyncFunctionDef(name=found):
                if found == name:
                    return True
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                if any((alias.asname or alias.name.split(".")[0]) == name for alias in aliases):
                    return True
            case ast.Subscript(value=ast.Name(id=found), ctx=ast.Store()) if found == name:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr=method)) if found == name:
                if method.endswith("_") and not method.endswith("__"):
                    return True
    return False


def assigned(statement: ast.stmt | None, name: str) -> ast.expr | None:
    """Returns the value of a statement ``name = value``; None for any other."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
            return value
    return None


def scope_of(module: ReadModule, node: ast.AST) -> Function | ast.Module:
    """Returns the function that evaluates a node; the module if there is none."""
    return module.file.scope(node)


def check_last_lines_run(loop: ast.For | ast.AsyncFor | ast.While) -> None:
    """Raises NotSure if a loop has an ``else``, or contains a ``return``, ``yield`` or ``try``."""
    if loop.orelse or any(isinstance(each, (ast.Return, ast.Yield, ast.Try)) for each in ast.walk(loop)):
        raise NotSure("the loop may exit before its last lines run", loop)


def loads(scope: ast.AST, name: str) -> list[ast.Name]:
    """Returns the reads of a name below a node, with the reads in inner functions."""
    found = (node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name)
    return [node for node in found if isinstance(node.ctx, ast.Load)]


def used_elsewhere(
    module: ReadModule, name: str, own: Iterable[ast.Name], statements: Iterable[ast.stmt], final: ast.stmt
) -> ast.AST | None:
    """Returns a read of ``name`` that may see a value which ``statements`` assign; None if there is provably none. own:
    reads that do not count. final: the statement after ``statements``, in the same block.
    """
    known, chain = set(own), [*statements, final]
    scope = scope_of(module, final)
    if name in module.declared_global:
        return final
    others = [node for node in loads(scope, name) if node not in known]
    for node in others:
        if scope_of(module, node) is not scope or _in_comprehension(module, node):
            return node
    first = min(chain, key=lambda each: each.lineno)
    block = block_of(module, first)
    reach = block[block.index(first) :]
    for statement in reach:
        here = [node for node in others if _inside(module, node, statement)]
        if here:
            return here[0]
        if statement is final and name in stored(final):
            return None
        if statement not in chain and assigned(statement, name) is not None:
            return None
    around = [each for each in module.above(first) if isinstance(each, (ast.stmt, ast.Module)) and each is not scope]
    loop = any(isinstance(each, (ast.For, ast.While, ast.AsyncFor)) for each in _up_to(around, scope))
    end = reach[-1].end_lineno or 0
    return next((node for node in others if loop or node.lineno > end), None)


def _up_to(nodes: Iterable[ast.AST], scope: ast.AST) -> Iterator[ast.AST]:
    for node in nodes:
        if node is scope or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return
        yield node


def _inside(module: ReadModule, node: ast.AST, statement: ast.stmt) -> bool:
    return node is statement or any(each is statement for each in module.above(node))


def _in_comprehension(module: ReadModule, node: ast.AST) -> bool:
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    return any(isinstance(each, kinds) for each in module.above(node) if not isinstance(each, ast.stmt))


def check_move(module: ReadModule, moved: ast.expr, start: ast.stmt, end: ast.stmt, gone: Iterable[ast.stmt]) -> None:
    """Raises NotSure unless ``moved`` has the same value at ``end`` as at ``start``, which is earlier in the block.

    gone: the statements between them that are deleted.
    """
    if start is end:
        return
    names = {node.id for node in ast.walk(moved) if isinstance(node, ast.Name)}
    attributes = {module.code(node) for node in ast.walk(moved) if isinstance(node, ast.Attribute)}
    block = block_of(module, end)
    if start not in block:
        raise NotSure("the statements are in different blocks", start)
    skipped = set(gone)
    for statement in block[block.index(start) + 1 : block.index(end)]:
        if statement in skipped:
            continue
        if not is_pure(module, statement):
            raise NotSure(f"line {statement.lineno} between its statements may change what they use", statement)
        if any(changes_name(statement, name) for name in names):
            raise NotSure(f"line {statement.lineno} binds a name anew that an earlier statement uses", statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and module.code(node) in attributes:
                raise NotSure(f"line {statement.lineno} sets {module.code(node)} between its statements", statement)
