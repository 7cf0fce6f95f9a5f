"""Removes assignments that nothing reads after a change. Their comments stay."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read
from tilewright.source.syntax import Source


def without_dead(source: Source, function: str, names: Iterable[str]) -> Source:
    """The source without the assignments of those of ``names`` that ``function`` reads no longer.

    What only they read goes too. A name stays where one of its assignments does more than compute a value.
    """
    open_ = sorted(names)
    while open_:
        name = open_.pop(0)
        lines = _lines(source, function, name)
        if not lines:
            continue
        body = source.functions[function].body
        removed = body.visit(_Without(lines))
        assert isinstance(removed, cst.BaseSuite)
        effects = Effects(source, source.functions[function])
        if name in names_read(removed) or not all(effects.is_pure(line) for line in lines):
            continue
        open_ += sorted({read for line in lines for read in names_read(line)} - {name})
        source = source.changed({body: removed})
    return source


def _lines(source: Source, function: str, name: str) -> list[cst.SimpleStatementLine]:
    """All statements that assign ``name`` if each is a plain ``name = value``; otherwise none."""
    tree = source.functions[function]
    found = []
    for line in source.every(cst.SimpleStatementLine, tree):
        if name not in names_assigned(line):
            continue
        [one, *others] = line.body
        plain = isinstance(one, cst.Assign) and [type(target.target) for target in one.targets] == [cst.Name]
        if others or not plain:
            return []
        found.append(line)
    return found if len(found) == names_assigned(tree)[name] else []


class _Without(cst.CSTTransformer):
    def __init__(self, lines: list[cst.SimpleStatementLine]) -> None:
        super().__init__()
        self.lines = lines

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        kept: list[cst.BaseStatement] = []
        above: list[cst.EmptyLine] = []
        for before, one in zip(original_node.body, updated_node.body, strict=True):
            if any(before is line for line in self.lines):
                assert isinstance(before, cst.SimpleStatementLine)
                above += before.leading_lines
                if before.trailing_whitespace.comment is not None:
                    above.append(cst.EmptyLine(comment=before.trailing_whitespace.comment))
                continue
            if above:
                one = one.with_changes(leading_lines=[*above, *getattr(one, "leading_lines", ())])
                above = []
            kept.append(one)
        if not kept:
            return updated_node
        return updated_node.with_changes(body=kept, footer=[*above, *updated_node.footer])
