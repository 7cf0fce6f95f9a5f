"""Computes quotients, square roots and tanh with the hardware's approximations.

An exact float32 quotient takes about ten instructions, an approximate quotient two. If a whole row has one divisor, the
reciprocal is computed once and the row multiplied by it. Results differ in the last bits.
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, dependent, loops_around, names_assigned, names_read
from tilewright.playbook.analyses.expressions import factor_of, fitting, operands_of, text_of
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Expression, Function, Source, argument, number, with_argument

APPROXIMATE, FLUSHED, RECIPROCAL, RSQRT = "approximate", "approximate, flush to zero", "reciprocal", "rsqrt"
_ROUNDED = ("truediv", "sqrt", "tanh")  # functions that take RoundingMode.APPROX, without exp: see exp2.py
_TILES = (
    "load", "gather", "mma", "matmul", "zeros", "ones", "full", "exp", "exp2", "sum", "max", "min", "sqrt",
    "rsqrt", "tanh", "where", "astype", "reshape", "maximum", "minimum",
)  # fmt: skip
MOST_SITES = 6
BY_SCALAR = 0.3  # promise of a quotient by a scalar, which often has only one value per row


class Approximate(Entry):
    about = EntryDescription(
        id="approximate",
        name="approximate division and roots",
        what="quotients, square roots and tanh with RoundingMode.APPROX, as a reciprocal, or as rsqrt",
        when="quotients of whole tiles in float32: softmax, norms, sigmoid",
        when_not="other dtypes; results that must be right to the last bit; quotients of scalars",
        priority={"compute": 8, "balanced": 6, "memory": 7},
        eases=("conversions and special functions", "issue slots"),
        order=120,
        effect=Effect.assumed(1.0, 1.05),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for function in source.tile_code.values():
            tiles = _tile_names(source, function)
            for node in _candidates(source, function):
                if values := _values(source, function, node, tiles):
                    what = "quotient" if _quotient(source, node) else source.code(node).partition("(")[0]
                    promise = BY_SCALAR if values[0] == RECIPROCAL else 1.0
                    found.append(Site.at(source, node, f"{what} in float32", values, promise))
        return sorted(found, key=lambda site: -site.promise)[:MOST_SITES]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function(source)
        divides = site.what.startswith(
            "quotient"
        )  # a quotient, its dividend and perhaps a root may begin at the same place
        nodes = [node for node in _candidates(source, function) if isinstance(node, cst.BinaryOperation) == divides]
        node = site.node(source, nodes, nothing := f"nothing here to make {value}")
        if value not in _values(source, function, node, _tile_names(source, function)):
            raise site.refused(source, nothing)
        if value == RSQRT:
            return _with_rsqrt(source, function, node)
        if value == RECIPROCAL and (quotient := _quotient(source, node)) is not None:
            left, right = quotient
            new = f"{factor_of(source, left)} * (1.0 / {text_of(source, right)})"
            return source.replaced({node: fitting(source, node, new)})
        call, module = node, source.tile_module
        if isinstance(node, cst.BinaryOperation):
            call = cst.parse_expression(f"{module}.truediv({source.code(node.left)}, {source.code(node.right)})")
        assert isinstance(call, cst.Call)
        call = with_argument(call, "rounding_mode", f"{module}.RoundingMode.APPROX")
        return source.replaced({node: call if value == APPROXIMATE else with_argument(call, "flush_to_zero", "True")})


def _quotients(source: Source, function: Function) -> list[cst.BinaryOperation]:
    return [node for node in source.every(cst.BinaryOperation, function) if isinstance(node.operator, cst.Divide)]


def _candidates(source: Source, function: Function) -> list[Expression]:
    """Returns the operations that could be approximated. Operations in loops come first, then the others, both in the
    order of the text."""
    found = [*_quotients(source, function), *source.calls(*_ROUNDED, inside=function)]
    return sorted(found, key=lambda node: (not loops_around(source, node), source.place(node)))


def _values(source: Source, function: Function, node: Expression, tiles: set[str]) -> tuple[Value, ...]:
    """Returns the ways to approximate ``node``; empty if ``node`` is no operation on tiles, or already approximate."""
    if isinstance(node, cst.Call) and argument(node, "rounding_mode") is not None:
        return ()
    quotient = _quotient(source, node)
    if quotient is None:
        if node in source.calls("sqrt", inside=function):
            return (RSQRT, APPROXIMATE) if _divided_by(source, function, node) else (APPROXIMATE, FLUSHED)
        return (APPROXIMATE,)
    left, right = quotient
    if not any(_is_tile(source, operand, tiles) for operand in quotient):
        return ()
    if number(left) is not None or not isinstance(node, cst.BinaryOperation):
        return (APPROXIMATE, FLUSHED)
    return (FLUSHED, APPROXIMATE, RECIPROCAL) if _is_tile(source, right, tiles) else (RECIPROCAL, APPROXIMATE)


def _quotient(source: Source, node: Expression) -> tuple[Expression, Expression] | None:
    """Returns dividend and divisor; None if the operation does not divide."""
    divides = isinstance(node, cst.BinaryOperation) or node in source.calls("truediv", inside=node)
    return operands_of(node) if divides else None


def _tile_names(source: Source, function: Function) -> set[str]:
    """Returns the names whose values are computed from a tile, as far as the text shows it."""
    made = {name for _, name, value in assignments(source, function) if _is_tile(source, value, set())}
    return dependent(source, function, made)


def _is_tile(source: Source, node: Expression, tiles: set[str]) -> bool:
    return bool(names_read(node) & tiles or ".astype(" in source.code(node) or source.calls(*_TILES, inside=node))


def _divided_by(source: Source, function: Function, root: Expression) -> list[cst.BinaryOperation]:
    """Returns the quotients whose divisor is the square root ``root``, or a name that has its value.

    Empty if the root is used for anything else.
    """
    divisions = {quotient.right: quotient for quotient in _quotients(source, function)}
    if root in divisions:
        return [divisions[root]]
    names = [name for _, name, value in assignments(source, function) if value is root]
    if len(names) != 1 or names_assigned(function)[names[0]] != 1:
        return []
    uses = {
        node
        for node in source.every(cst.Name, function.body)
        if node.value == names[0] and not isinstance(source.parent(node), cst.AssignTarget)
    }
    return [divisions[node] for node in uses] if divisions.keys() >= uses else []


def _with_rsqrt(source: Source, function: Function, root: Expression) -> str:
    """Returns the text with x / sqrt(y) written as x · rsqrt(y), wherever ``root`` is the divisor."""
    rsqrt = root.with_changes(func=cst.parse_expression(f"{source.tile_module}.rsqrt"))
    changes: dict[cst.CSTNode, cst.CSTNode] = {root: rsqrt}
    for quotient in _divided_by(source, function, root):
        divide = quotient.operator
        assert isinstance(divide, cst.Divide)
        changes[divide] = cst.Multiply(divide.whitespace_before, divide.whitespace_after)
    return source.replaced(changes)


ENTRY = Approximate()
