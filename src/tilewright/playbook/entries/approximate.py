"""Computes quotients, square roots and tanh as the hardware approximates them.

A float32 quotient that is right to the last bit takes about ten instructions, an approximate one two. A divisor that
serves a whole row is inverted once and multiplied. Results differ in the last bits. No gain is recorded yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, dependent, loops_around, names_assigned, names_read
from tilewright.playbook.analyses.expressions import factor_of, fitting, operands_of, text_of
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Changes, Function, Source, argument, number, with_argument

APPROXIMATE, FLUSHED, RECIPROCAL, RSQRT = "approximate", "approximate, flush to zero", "reciprocal", "rsqrt"
_ROUNDED = ("truediv", "sqrt", "tanh")
"""Functions of cuda.tile that take ``RoundingMode.APPROX``; exp is `exp2.py`'s."""
_TILES = (
    "load", "gather", "mma", "matmul", "zeros", "ones", "full", "exp", "exp2", "sum", "max", "min", "sqrt",
    "rsqrt", "tanh", "where", "astype", "reshape", "maximum", "minimum",
)  # fmt: skip
MOST_SITES = 6
BESIDE = 0.3
"""Promise of a quotient by a scalar, which is often of one value a row."""


class Approximate(Entry):
    about = EntryDescription(
        id="approximate",
        name="approximate division and roots",
        what="quotients, square roots and tanh with RoundingMode.APPROX, as a reciprocal, or as rsqrt",
        when="quotients of whole tiles in float32: softmax, norms, sigmoid",
        when_not="other dtypes; results that must be right to the last bit; quotients of scalars",
        priority={"compute": 8, "balanced": 6, "memory": 7},
        order=120,
        effect=Effect.assumed(1.0, 1.05),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        found = []
        for function in source.tile_code.values():
            tiles = _tile_names(source, function)
            for node in _candidates(source, function):
                if values := _values(source, function, node, tiles):
                    what = "quotient" if _quotient(source, node) else source.code(node).partition("(")[0]
                    promise = BESIDE if values[0] == RECIPROCAL else 1.0
                    found.append(Site.at(source, node, f"{what} in float32", values, promise))
        return sorted(found, key=lambda site: -site.promise)[:MOST_SITES]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function(source)
        quotient_here = site.what.startswith("quotient")  # a quotient and a root that is its dividend begin alike
        nodes = [one for one in _candidates(source, function) if isinstance(one, cst.BinaryOperation) == quotient_here]
        node = site.node(source, nodes, nothing := f"nothing here to make {value}")
        if value not in _values(source, function, node, _tile_names(source, function)):
            raise NotApplicable(f"{source.name}:{site.line}: {nothing}")
        if value == RSQRT:
            return _with_rsqrt(source, function, node)
        if value == RECIPROCAL and (quotient := _quotient(source, node)) is not None:
            left, right = quotient
            new = f"{factor_of(source, left)} * (1.0 / {text_of(source, right)})"
            return source.replaced({node: fitting(source, node, new)})
        call = node
        if isinstance(node, cst.BinaryOperation):
            written = f"{source.tile_module}.truediv({source.code(node.left)}, {source.code(node.right)})"
            call = cst.parse_expression(written)
        assert isinstance(call, cst.Call)
        call = with_argument(call, "rounding_mode", f"{source.tile_module}.RoundingMode.APPROX")
        return source.replaced({node: call if value == APPROXIMATE else with_argument(call, "flush_to_zero", "True")})


def _candidates(source: Source, function: Function) -> list[cst.BaseExpression]:
    quotients = [one for one in source.every(cst.BinaryOperation, function) if isinstance(one.operator, cst.Divide)]
    found: list[cst.BaseExpression] = [*quotients, *source.calls(*_ROUNDED, inside=function)]
    return sorted(found, key=lambda one: (not loops_around(source, one), source.place(one)))


def _values(source: Source, function: Function, node: cst.BaseExpression, tiles: set[str]) -> tuple[Value, ...]:
    """What can replace ``node``; empty where it is no operation on tiles or is approximate already."""
    if isinstance(node, cst.Call) and argument(node, "rounding_mode") is not None:
        return ()
    quotient = _quotient(source, node)
    if quotient is None:
        if node in source.calls("sqrt", inside=function):
            return (RSQRT, APPROXIMATE) if _divided_by(source, function, node) else (APPROXIMATE, FLUSHED)
        return (APPROXIMATE,)
    left, right = quotient
    if not any(_is_tile(source, one, tiles) for one in quotient):
        return ()
    if number(left) is not None or not isinstance(node, cst.BinaryOperation):
        return (APPROXIMATE, FLUSHED)
    return (FLUSHED, APPROXIMATE, RECIPROCAL) if _is_tile(source, right, tiles) else (RECIPROCAL, APPROXIMATE)


def _quotient(source: Source, node: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    divides = isinstance(node, cst.BinaryOperation) or node in source.calls("truediv", inside=node)
    return operands_of(node) if divides else None


def _tile_names(source: Source, function: Function) -> set[str]:
    """The names whose values the text shows to come from a tile."""
    calls = set(source.calls(*_TILES, inside=function))
    made = {
        name
        for _, name, value in assignments(source, function)
        if ".astype(" in source.code(value) or calls & set(source.every(cst.Call, value))
    }
    return dependent(source, function, made)


def _is_tile(source: Source, node: cst.BaseExpression, tiles: set[str]) -> bool:
    return bool(names_read(node) & tiles or ".astype(" in source.code(node) or source.calls(*_TILES, inside=node))


def _divided_by(source: Source, function: Function, root: cst.BaseExpression) -> list[cst.BinaryOperation]:
    """The quotients by a square root: of the call itself, or of the name that it alone gives a value.

    Empty where the root is used for anything else.
    """
    divisions = {
        one.right: one for one in source.every(cst.BinaryOperation, function) if isinstance(one.operator, cst.Divide)
    }
    if root in divisions:
        return [divisions[root]]
    names = [name for _, name, value in assignments(source, function) if value is root]
    if len(names) != 1 or names_assigned(function)[names[0]] != 1:
        return []
    uses = [
        one
        for one in source.every(cst.Name, function.body)
        if one.value == names[0] and not isinstance(source.parent(one), cst.AssignTarget)
    ]
    return [divisions[one] for one in uses] if divisions.keys() >= set(uses) else []


def _with_rsqrt(source: Source, function: Function, root: cst.BaseExpression) -> str:
    """x / sqrt(y) as x · rsqrt(y), in every place where the root divides."""
    call = root.with_changes(func=cst.parse_expression(f"{source.tile_module}.rsqrt"))
    divides = [one.operator for one in _divided_by(source, function, root) if isinstance(one.operator, cst.Divide)]
    times: Changes = {one: cst.Multiply(one.whitespace_before, one.whitespace_after) for one in divides}
    return source.replaced({root: call, **times})


ENTRY = Approximate()
