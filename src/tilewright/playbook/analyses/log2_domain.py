"""Finds functions all of whose exponentials are of scores that one factor scales: softmax, plain or online.

There exp(s·x − m) equals exp2 of the same with s·log₂e in place of s, because the maximum m scales with the scores. No
other value changes, because the scaled values are used for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, names_assigned, names_read
from tilewright.source.syntax import Source, dotted

_KEEPS = ("max", "min", "maximum", "minimum", "where", "reshape", "transpose", "permute", "broadcast_to", "expand_dims")
"""Functions whose result scales with their operands, infinities included."""


@dataclass(frozen=True)
class ScoreScale:
    name: str
    """The scores: ``score`` in ``score = product * scale``."""
    place: cst.BinaryOperation
    factor: cst.BaseExpression
    """The part of it that is no tile."""
    exponentials: tuple[cst.Call, ...]


def scales(source: Source, function: str) -> list[ScoreScale]:
    """The one multiplication that scales every exponent of ``function``; empty if there is none."""
    code = source.functions.get(function)
    if code is None:
        return []
    exponentials = tuple(source.calls("exp", inside=code))
    if not exponentials or source.calls("exp2", inside=code):
        return []
    if any(len(call.args) != 1 for call in exponentials):
        return []
    given = list(assignments(source, code))
    counted = names_assigned(code)
    found = []
    for _, name, value in given:
        if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Multiply):
            continue
        factor = _scalar(source, value)
        if factor is None:
            continue
        scaled = _Scaled(source, value)
        names = scaled.closure(name, given, {one for one, count in counted.items() if count})
        if names is None or not all(scaled.scales(call.args[0].value, names) for call in exponentials):
            continue
        if not _used_elsewhere(source, code, names, given, exponentials):
            found.append(ScoreScale(name, value, factor, exponentials))
    return found if len(found) == 1 else []


class _Scaled:
    """What scales with the result of one multiplication, the seed."""

    def __init__(self, source: Source, seed: cst.BinaryOperation) -> None:
        self.source, self.seed = source, seed

    def closure(
        self, name: str, given: list[tuple[cst.SimpleStatementLine, str, cst.BaseExpression]], all_names: set[str]
    ) -> set[str] | None:
        """The names whose values all scale with the seed; None where ``name`` is not one of them."""
        values: dict[str, list[cst.BaseExpression]] = {}
        for _, one, value in given:
            values.setdefault(one, []).append(value)
        written = names_assigned(self.source.functions[self.source.function_of(self.seed)])
        names = {one for one in all_names if len(values.get(one, ())) == written[one]}
        while True:  # the largest set that agrees with itself
            kept = {one for one in names if all(self.scales(value, names) for value in values[one])}
            if kept == names:
                break
            names = kept
        seeded = {name} & names
        while seeded:  # of it, what the seed reaches or feeds an exponent beside it
            more = {one for one in names if any(names_read(value) & seeded for value in values[one])}
            more |= {read for one in seeded for value in values[one] for read in names_read(value) if read in names}
            if more <= seeded:
                return seeded
            seeded |= more
        return None

    def scales(self, node: cst.BaseExpression, names: set[str]) -> bool:
        if node is self.seed or _is_infinite(self.source, node):
            return True
        match node:
            case cst.Name():
                return node.value in names
            case cst.Subscript():
                return self.scales(node.value, names)
            case cst.UnaryOperation():
                return isinstance(node.operator, cst.Minus) and self.scales(node.expression, names)
            case cst.BinaryOperation():
                same = isinstance(node.operator, (cst.Add, cst.Subtract))
                return same and self.scales(node.left, names) and self.scales(node.right, names)
            case cst.Call():
                return self._called(node, names)
        return False

    def _called(self, call: cst.Call, names: set[str]) -> bool:
        module = f"{self.source.tile_module}."
        called = dotted(call.func)
        if called == f"{module}full" and len(call.args) >= 2:
            return _is_infinite(self.source, call.args[1].value)
        if called not in ("max", "min") and called.removeprefix(module) not in (_KEEPS if module in called else ()):
            method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _KEEPS
            return method and isinstance(call.func, cst.Attribute) and self.scales(call.func.value, names)
        tiles = [arg.value for arg in call.args if arg.keyword is None]
        if called == f"{module}where":
            return len(tiles) == 3 and all(self.scales(one, names) for one in tiles[1:])
        if called in ("max", "min", f"{module}maximum", f"{module}minimum"):
            return all(self.scales(one, names) for one in tiles)
        return bool(tiles) and self.scales(tiles[0], names)


def _used_elsewhere(
    source: Source,
    code: cst.FunctionDef,
    names: set[str],
    given: list[tuple[cst.SimpleStatementLine, str, cst.BaseExpression]],
    exponentials: tuple[cst.Call, ...],
) -> bool:
    """Whether a scaled value is used for anything but exponentials and other scaled values."""
    conditions = [call.args[0].value for call in source.calls("where", inside=code) if call.args]
    if any(names_read(one) & names for one in conditions):
        return True
    allowed = [call.args[0].value for call in exponentials] + [value for _, one, value in given if one in names]
    inside = {id(node) for one in allowed for node in _below(one)}
    targets = {id(node) for target in source.every(cst.AssignTarget, code) for node in _below(target)}
    return any(
        id(node) not in inside | targets and node.value in names and not _is_label(source, node)
        for node in source.every(cst.Name, code.body)
    )


def _below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _below(child)


def _is_label(source: Source, node: cst.Name) -> bool:
    """Whether it names an argument or an attribute, and no value."""
    above = source.parent(node)
    return (isinstance(above, cst.Arg) and above.keyword is node) or (
        isinstance(above, cst.Attribute) and above.attr is node
    )


def _scalar(source: Source, product: cst.BinaryOperation) -> cst.BaseExpression | None:
    """The factor that is a number, a parameter or a constant, so that a constant can be folded into it."""
    function = source.functions[source.function_of(product)]
    plain = {one.name.value for one in function.params.params} - set(names_assigned(function.body))
    for side in (product.right, product.left):
        if isinstance(side, (cst.Float, cst.Integer)) or (isinstance(side, cst.Name) and side.value in plain):
            return side
    return None


def _is_infinite(source: Source, node: cst.BaseExpression) -> bool:
    text = source.code(node).replace("'", '"').lstrip("-")
    return text in ('float("inf")', 'float("-inf")', "math.inf", "np.inf")
