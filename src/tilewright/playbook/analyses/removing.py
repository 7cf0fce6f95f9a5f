"""Removes statements from tile code: those that nothing reads after a change, and others with their comments kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read
from tilewright.source.syntax import Function, Line, Source


def without_dead(source: Source, function: str, names: Iterable[str]) -> Source:
    """Returns the source without the assignments of ``names`` whose values ``function`` no longer reads.

    Also removes assignments whose values only removed assignments read. Keeps all assignments of a name if one
    assignment does more than compute a value.
    """
    pending = sorted(names)
    while pending:
        name = pending.pop(0)
        tree = source.functions[function]
        if not (lines := _plain_assignments(source, tree, name)):
            continue
        removed, effects = without_lines(tree.body, lines), Effects(source, tree)
        if name not in names_read(removed) and all(effects.is_pure(line) for line in lines):
            pending += sorted({read for line in lines for read in names_read(line)} - {name})
            source = source.changed({tree.body: removed})
    return source


def _plain_assignments(source: Source, function: Function, name: str) -> list[Line]:
    """Returns all statements that assign ``name``, if each is a plain ``name = value``; otherwise an empty list."""
    plain = []
    for line in source.every(Line, function):
        match line.body:
            case [cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=target))])] if target == name:
                plain.append(line)
    return plain if len(plain) == names_assigned(function)[name] else []


def without_lines(body: cst.BaseSuite, lines: Sequence[cst.BaseStatement]) -> cst.BaseSuite:
    """Returns a function's body without the statements ``lines``. A block that would be empty keeps them."""
    removed = body.visit(_Without(lines))
    assert isinstance(removed, cst.BaseSuite)
    return removed


def block_without(
    old: cst.IndentedBlock, new: cst.IndentedBlock, lines: Sequence[cst.BaseStatement]
) -> cst.IndentedBlock:
    """Returns the block ``new``, a copy of ``old``, without the statements ``lines`` of ``old``, if others are left.

    Their comments move to the next statement.
    """
    kept: list[cst.BaseStatement] = []
    above: list[cst.EmptyLine] = []
    for before, statement in zip(old.body, new.body, strict=True):
        if before in lines:
            above += getattr(before, "leading_lines", ())
            if isinstance(before, Line) and before.trailing_whitespace.comment is not None:
                above.append(cst.EmptyLine(comment=before.trailing_whitespace.comment))
        else:
            own = getattr(statement, "leading_lines", ())
            if above or (not kept and old.body[0] in lines):  # no blank lines below a comment or the block's header
                own = itertools.dropwhile(lambda line: line.comment is None, own)
            kept.append(statement.with_changes(leading_lines=[*above, *own]))
            above = []
    return new.with_changes(body=kept, footer=[*above, *new.footer]) if kept else new


class _Without(cst.CSTTransformer):
    def __init__(self, lines: Sequence[cst.BaseStatement]) -> None:
        super().__init__()
        self.lines = lines

    def leave_IndentedBlock(self, old: cst.IndentedBlock, new: cst.IndentedBlock) -> cst.IndentedBlock:
        return block_without(old, new, self.lines)
