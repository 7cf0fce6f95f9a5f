"""Which assignment gives a name its value at a place: the reaching definition, where it is the only one.

Names are followed backward through statements and outward through blocks. Where two assignments may reach the
place (a loop's earlier iteration, a branch), there is no answer, and an entry leaves the place alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, TypeVar

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned
from tilewright.source.syntax import Source, elements

Statement = TypeVar("Statement", bound=cst.CSTNode)
Kind: TypeAlias = Literal["value", "opaque", "loop", "parameter", "outside"]


@dataclass(frozen=True, eq=False)
class Definition:
    """What a name stands for. ``opaque`` is an assignment whose value has no expression, such as ``+=``."""

    kind: Kind
    node: cst.CSTNode
    """Where it is defined; the same node means the same value (within one iteration of a loop)."""
    value: cst.BaseExpression | None = None


def reaching(source: Source, name: str, at: cst.CSTNode) -> Definition | None:
    """The one definition of ``name`` that reaches ``at``; None where several may, or it is not understood."""
    below: cst.CSTNode = at
    for above in source.parents(at):
        match above:
            case cst.SimpleStatementLine():
                found = _last(name, _before(above.body, below))
                if found is not None:
                    return found
            case cst.IndentedBlock():
                for one in reversed(_before(above.body, below)):
                    if name in _bound(one):
                        return _in_statement(name, one)
            case cst.For() if below is above.body:
                if name in _target_names(above.target):
                    return Definition("loop", above)
                if name in _bound(above.body):
                    return None
            case cst.While() if below is above.body or below is above.test:
                if name in _bound(above):
                    return None
            case cst.FunctionDef():
                if name in {one.name.value for one in _parameters(above)}:
                    return Definition("parameter", above)
                if name in _bound(above.body):
                    return None
            case cst.Lambda() | cst.GeneratorExp() | cst.ListComp():
                return None
        below = above
    return Definition("outside", source.module)


def _before(statements: Sequence[Statement], one: cst.CSTNode) -> list[Statement]:
    places = [place for place, other in enumerate(statements) if other is one]
    return list(statements[: places[0]]) if places else []


@lru_cache(maxsize=4096)  # nodes never change, and all names of a function are followed through its statements
def _bound(statement: cst.CSTNode) -> frozenset[str]:
    if isinstance(statement, cst.FunctionDef):
        return frozenset((statement.name.value,))
    return frozenset(names_assigned(statement))


def _in_statement(name: str, statement: cst.BaseStatement) -> Definition | None:
    """What a statement of a block leaves in ``name``; None where that depends on which way it went."""
    if isinstance(statement, cst.SimpleStatementLine):
        return _last(name, statement.body)
    return Definition("opaque", statement) if isinstance(statement, cst.FunctionDef) else None


def _last(name: str, statements: Sequence[cst.BaseSmallStatement]) -> Definition | None:
    for one in reversed(statements):
        if name in _bound(one):
            value = _assigned_to(name, one)
            return Definition("opaque" if value is None else "value", one, value)
    return None


def _assigned_to(name: str, statement: cst.BaseSmallStatement) -> cst.BaseExpression | None:
    match statement:
        case cst.Assign():
            for target in statement.targets:
                if isinstance(target.target, cst.Name) and target.target.value == name:
                    return statement.value
                names, values = elements(target.target) or [], elements(statement.value) or []
                if len(names) == len(values):
                    for one, value in zip(names, values, strict=True):
                        if isinstance(one, cst.Name) and one.value == name:
                            return value
        case cst.AnnAssign():
            return statement.value
    return None


def _target_names(node: cst.CSTNode) -> set[str]:
    if isinstance(node, cst.Name):
        return {node.value}
    return {name for child in node.children for name in _target_names(child)}


def _parameters(function: cst.FunctionDef) -> list[cst.Param]:
    params = function.params
    return [*params.posonly_params, *params.params, *params.kwonly_params]
