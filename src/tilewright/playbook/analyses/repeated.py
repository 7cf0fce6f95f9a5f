"""Removes assignments that compute the same value as an earlier one: loads, conversions and index arithmetic.

Two expressions are the same if their texts are equal and each name in them has the same value in both places. Loads are
the same only if the kernel never writes their array.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import libcst as cst

from tilewright.playbook.analyses.dataflow import Effects, names_assigned, names_read, without_lines
from tilewright.source.syntax import Line, Source


def without_repeated(source: Source, kernel: str) -> tuple[Source, int]:
    """Returns the source without repeated assignments in the body of ``kernel``, and the number of loads removed.

    Statements in branches and loops do not change.
    """
    function = source.functions[kernel]
    effects, fresh = Effects(source, function), itertools.count()
    values: dict[str, int] = {}
    """Name → a number that stands for its present value. Names without one are parameters and names outside."""
    known: dict[tuple[str, tuple[tuple[str, int], ...]], tuple[str, int]] = {}
    """Expression with the values of its names → the name that first got its value, and the value."""
    gone: list[Line] = []
    changes: dict[cst.CSTNode, cst.BaseExpression] = {}
    loads = 0
    assert isinstance(function.body, cst.IndentedBlock)
    for statement in function.body.body:
        match statement:
            case Line(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=target))], value=value)]) if (
                effects.is_pure(value)
            ):
                key = source.code(value), _values_of(value, values)
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


def _values_of(node: cst.BaseExpression, values: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, values.get(name, -1)) for name in names_read(node)))
