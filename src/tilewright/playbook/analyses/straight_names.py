"""Gives each value that straight code assigns to one name a name of its own.

    acc = ct.zeros((D, H), …)              acc__v1 = ct.zeros((D, H), …)
    for n in range(…):                     for n in range(…):
        acc = ct.mma(…, acc)        →          acc__v1 = ct.mma(…, acc__v1)
    acc = ct.transpose(acc)                acc = ct.transpose(acc__v1)

An analysis that keeps one shape for each name then knows both shapes of ``acc``. The last assignment of a block keeps
the name. So what follows the block, or its next iteration, reads the right value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import libcst as cst

from tilewright.source.syntax import Function, Replacement, Source

_ADDED = re.compile(r"__v\d+\b")


def with_straight_names(source: Source, function: Function) -> Source:
    """Returns the source with more names in ``function``; as it is if a loop ends early or a function is nested."""
    if any(source.every(kind, function.body) for kind in (cst.FunctionDef, cst.Lambda, cst.Break, cst.Continue)):
        return source
    changes, numbers = dict[cst.CSTNode, Replacement](), itertools.count(1)
    for block in source.every(cst.IndentedBlock, function):  # outer blocks first
        for first, last in _ranges(block):
            name, new = _assigned(first), f"{_assigned(first)}__v{next(numbers)}"
            statements = block.body[block.body.index(first) + 1 : block.body.index(last)]
            places = [*_names(source, _assignment(first).targets[0]), *_names(source, _assignment(last).value)]
            places += [place for statement in statements for place in _names(source, statement)]
            changes |= {place: place.with_changes(value=new) for place in places if place.value == name}
    return source.changed(changes)


def original(text: str) -> str:
    """Returns the text with the names that the file has."""
    return _ADDED.sub("", text)


def _ranges(block: cst.IndentedBlock) -> Iterator[tuple[cst.BaseStatement, cst.BaseStatement]]:
    """Yields each assignment of a block with the next one to the same name."""
    last: dict[str, cst.BaseStatement] = {}
    for statement in block.body:
        if name := _assigned(statement):
            if name in last:
                yield last[name], statement
            last[name] = statement


def _assigned(statement: cst.BaseStatement) -> str:
    """Returns the name that a statement assigns; "" if it does anything else."""
    match statement:
        case cst.SimpleStatementLine(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))])]):
            return name
    return ""


def _assignment(statement: cst.BaseStatement) -> cst.Assign:
    assert isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Assign)
    return statement.body[0]


def _names(source: Source, node: cst.CSTNode) -> Iterator[cst.Name]:
    """Yields the names of values in a node; no attributes and no keywords."""
    for name in source.every(cst.Name, node):
        match source.parent(name):
            case cst.Attribute(attr=attribute) if attribute is name:
                continue
            case cst.Arg(keyword=keyword) if keyword is name:
                continue
        yield name
