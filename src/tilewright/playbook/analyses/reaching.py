"""Which assignment gives a name its value at a place: the reaching definition, where there is only one.

Names are followed backward through statements and outward through blocks. Where two assignments may reach the place
(from a branch, or from an earlier iteration of a loop), the answer is None, and an entry leaves the place alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, pairs_of, parameters, target_names
from tilewright.source.syntax import Source, dotted

Statement = TypeVar("Statement", bound=cst.CSTNode)


@dataclass(frozen=True, eq=False)
class Definition:
    """The definition of a name."""

    node: cst.CSTNode
    """Where the name is defined. The same node means the same value, within one iteration of a loop."""
    value: cst.BaseExpression | None = None
    """None of a loop's variable, a parameter, a name from outside, and of an assignment such as ``+=``."""


def reaching(source: Source, name: str, at: cst.CSTNode) -> Definition | None:
    """The one definition of ``name`` that reaches ``at``; None if several may, or the code is not understood."""
    below: cst.CSTNode = at
    for above in source.parents(at):
        match above:
            case cst.SimpleStatementLine():
                found = _last(name, _before(above.body, below))
                if found is not None:
                    return found
            case cst.IndentedBlock():
                for one in reversed(_before(above.body, below)):
                    if name in _bound(one):  # in a branch or a loop, it depends on which way the code went
                        if isinstance(one, cst.SimpleStatementLine):
                            return _last(name, one.body)
                        return Definition(one) if isinstance(one, cst.FunctionDef) else None
            case cst.For() if below is above.body:
                if name in target_names(above.target):
                    return Definition(above)
                if name in _bound(above.body):
                    return None
            case cst.While() if below is above.body or below is above.test:
                if name in _bound(above):
                    return None
            case cst.FunctionDef():
                if name in parameters(above):
                    return Definition(above)
                if name in _bound(above.body):
                    return None
            case cst.Lambda() | cst.GeneratorExp() | cst.ListComp():
                return None
        below = above
    return Definition(source.module)


def _before(statements: Sequence[Statement], one: cst.CSTNode) -> list[Statement]:
    places = [place for place, other in enumerate(statements) if other is one]
    return list(statements[: places[0]]) if places else []


@lru_cache(maxsize=4096)  # nodes never change, and all names of a function are followed through its statements
def _bound(statement: cst.CSTNode) -> frozenset[str]:
    if isinstance(statement, cst.FunctionDef):
        return frozenset((statement.name.value,))
    return frozenset(names_assigned(statement))


def _last(name: str, statements: Sequence[cst.BaseSmallStatement]) -> Definition | None:
    for one in reversed(statements):
        if name in _bound(one):
            return Definition(one, _assigned_to(name, one))
    return None


def _assigned_to(name: str, statement: cst.BaseSmallStatement) -> cst.BaseExpression | None:
    if isinstance(statement, cst.AnnAssign):
        return statement.value
    pairs = pairs_of(statement) if isinstance(statement, cst.Assign) else ()
    return next((value for target, value in pairs if value is not None and dotted(target) == name), None)
