"""Removes assignments that compute the same value as an earlier one: loads, conversions and index arithmetic.

Two expressions are the same if their texts are equal and each name in them has the same value in both places. Loads are
the same only if the kernel never writes their array.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, without_lines
from tilewright.source.syntax import Line, Source


def without_repeated(source: Source, kernel: str) -> tuple[Source, int]:
    """Returns the source without repeated assignments in the body of ``kernel``, and the number of loads removed.

    Statements in branches and loops do not change.
    """
    function = source.functions[kernel]
    effects, fresh = Effects(source, function), itertools.count()
    values: dict[str, int] = {}
    """Name → a number that stands for its present value. Names without one are parameters and names outside."""
    known: dict[str, tuple[str, int]] = {}
    """Expression in terms of values → the name that first got its value, and the value."""
    gone: list[Line] = []
    changes: dict[cst.CSTNode, cst.BaseExpression] = {}
    loads = 0
    assert isinstance(function.body, cst.IndentedBlock)
    for statement in function.body.body:
        match statement:
            case Line(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=target))], value=value)]) if (
                effects.is_pure(value)
            ):
                key = _in_values(source, value, values)
                name, number = known.get(key, ("", -1))
                if not name or values.get(name) != number:
                    values[target] = next(fresh)
                    known[key] = target, values[target]
                    continue
                load = any(effects.is_load(call) for call in source.every(cst.Call, value))
                if name == target:
                    gone.append(statement)
                elif load:
                    changes[value] = cst.Name(name)
                values[target] = number
                loads += load
            case _:
                values |= {name: next(fresh) for name in names_assigned(statement)}
    if not gone and not changes:
        return source, 0
    place = [source.place(line) for line in gone]  # replaced expressions keep the places of statements
    source = source.changed({**changes})
    function = source.functions[kernel]
    lines = [line for line in source.every(Line, function) if source.place(line) in place]
    return source.changed({function.body: without_lines(function.body, lines)}), loads


def _in_values(source: Source, node: cst.BaseExpression, values: Mapping[str, int]) -> str:
    """Returns the text of an expression with the numbers of values in place of names."""
    written = node.visit(_InValues(values))
    assert isinstance(written, cst.BaseExpression)
    return source.code(written)


class _InValues(cst.CSTTransformer):
    def __init__(self, values: Mapping[str, int]) -> None:
        super().__init__()
        self.values = values

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        number = self.values.get(original_node.value)
        return updated_node if number is None else updated_node.with_changes(value=f"value_{number}_")
