"""Finds the sums that a loop computes, and the statements between two loops that the second one needs.

Known forms of a sum, where s is a name that the loop carries from one iteration to the next:

    s = s + term        s += term        s = ct.add(s, term)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.chunk_loops import plain_target
from tilewright.playbook.analyses.dataflow import names_assigned, names_read, reaching
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.source.syntax import Expression, Line, Source, dotted

Statements = Sequence[cst.BaseStatement]


@dataclass(frozen=True, eq=False)
class Sum:
    """The ``statement`` that adds ``term`` to the sum ``name``; the term does not read the sum."""

    name: str
    statement: Line
    term: Expression


def sums_of(source: Source, inside: cst.CSTNode) -> list[Sum]:
    """Returns the sums below a node, also in branches, in the order of the text."""
    return [found for line in source.every(Line, inside) if (found := _sum(source, line))]


def _sum(source: Source, line: Line) -> Sum | None:
    match line:
        case cst.SimpleStatementLine(
            body=[cst.AugAssign(target=cst.Name(name), operator=cst.AddAssign(), value=value)]
        ):
            return None if name in names_read(value) else Sum(name, line, value)
        case cst.SimpleStatementLine(body=[cst.Assign(value=value)]) if name := plain_target(line):
            sides = _added(source, value)
            others = [side for side in sides if dotted(side) != name]
            if len(sides) == 2 and len(others) == 1 and name not in names_read(others[0]):
                return Sum(name, line, others[0])
    return None


def _added(source: Source, node: Expression) -> list[Expression]:
    """Returns the operands of ``a + b`` and ``ct.add(a, b)``; none for any other expression."""
    match node:
        case cst.BinaryOperation(operator=cst.Add()):
            return [node.left, node.right]
        case cst.Call() if tile_call(source, node) == "add":
            return [arg.value for arg in node.args if arg.keyword is None]
    return []


def needed(statements: Statements, names: Collection[str]) -> list[cst.BaseStatement]:
    """Returns the statements that give ``names`` their values, directly or through other names, in their order."""
    wanted, found = set(names), list[cst.BaseStatement]()
    for statement in reversed(statements):
        if set(names_assigned(statement)) & wanted:
            found.insert(0, statement)
            wanted |= names_read(statement)
    return found


def read_from_outside(source: Source, loop: cst.For) -> set[str]:
    """Returns the names that a loop reads, without those that it always assigns before."""
    inside = set(names_assigned(loop.body))
    read = names_read(loop)
    own = set()
    for name in inside & read:
        nodes = [node for node in source.every(cst.Name, loop.body) if node.value == name]
        nodes = [node for node in nodes if not isinstance(source.parent(node), cst.AssignTarget)]
        definitions = [reaching(source, name, node) for node in nodes]
        if all(each is not None and loop in source.parents(each.node) for each in definitions):
            own.add(name)
    return read - own
