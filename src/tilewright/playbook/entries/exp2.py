"""Replaces exp(x) by exp2(x · log₂ e), with the factor folded into an existing operation.

The hardware has an instruction for 2ˣ only, so every exp costs a multiplication by log₂ e. This factor can be folded
into the scale of the scores or into a constant. It can also be folded into the subtraction of the maximum, which then
becomes one fused multiply-add. The result rounds differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments, loops_around, names_assigned, names_read, values_by_name
from tilewright.playbook.analyses.expressions import (
    factor_of,
    fitting,
    fused_exponent,
    log2_e_name,
    scaled_exponent,
    with_log2_e,
)
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Changes, Expression, Function, Source, argument, dotted, with_argument

FOLDED, FUSED, SCALED, APPROXIMATE = "folded", "fused", "scaled", "approximate"
MOST_SITES = 6


class Exp2(Entry):
    about = EntryDescription(
        id="exp2",
        name="exp as exp2",
        what="ct.exp(x) becomes ct.exp2(x · log₂ e), the factor folded into a scale, a subtraction or a constant",
        when="exponentials of whole tiles: softmax, attention, sigmoid",
        when_not="a few exponentials of a reduced tile, or a kernel that waits for memory",
        priority={"compute": 8, "balanced": 6, "memory": 7},
        eases=("conversions and special functions", "issue slots"),
        order=100,
        effect=Effect.assumed(1.0, 1.05),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for name in source.tile_code:
            for scale in scales(source, name):
                why = f"all {len(scale.exponentials)} exponentials of {name} are of scaled scores"
                found.append(Site.at(source, scale.place, f"scale of {scale.name}", (FOLDED,), why=why))
        calls = sorted(source.calls("exp"), key=lambda call: not loops_around(source, call))
        for call in calls[: MOST_SITES - len(found)]:
            if not call.args:
                continue
            inside = call.args[0].value
            values: tuple[str, ...] = (FUSED,) if unless_refused(fused_exponent, source, inside, "") else ()
            values += (SCALED, APPROXIMATE) if argument(call, "rounding_mode") is None else (SCALED,)
            found.append(Site.at(source, call, f"exp of {source.code(inside)}", values))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if value == FOLDED:
            known = {scale.place: scale for scale in scales(source, site.kernel)}
            return _folded(source, site.kernel, known[site.node(source, known, "no common scale of all exponentials")])
        call = site.node(source, [call for call in source.calls("exp") if call.args], "no call of exp")
        if value == APPROXIMATE:
            if argument(call, "rounding_mode") is not None:
                raise NotApplicable("the exponential has a rounding_mode already")
            mode = f"{source.tile_module}.RoundingMode.APPROX"
            return source.replaced({call: with_argument(call, "rounding_mode", mode)})
        log2_e = log2_e_name(source, site.kernel)
        inside = call.args[0].value
        new = fused_exponent(source, inside, log2_e) if value == FUSED else scaled_exponent(source, inside, log2_e)
        return with_log2_e(source.changed({call: _exp2(source, call, cst.parse_expression(new))}), log2_e)


def _folded(source: Source, function: str, scale: ScoreScale) -> str:
    """Returns the text with log₂ e multiplied into the scale of the scores, and exp2 for every exp."""
    log2_e = log2_e_name(source, function)
    factor = fitting(source, scale.factor, f"{factor_of(source, scale.factor)} * {log2_e}")
    calls: Changes = {call: _exp2(source, call, call.args[0].value) for call in scale.exponentials}
    return with_log2_e(source.changed({scale.factor: factor, **calls}), log2_e)


def _exp2(source: Source, call: cst.Call, inside: Expression) -> cst.Call:
    """Returns the call of exp2 that replaces a call of exp, without its rounding mode, because exp2 takes none."""
    only = call.args[0].with_changes(value=inside)
    if len(call.args) > 1:
        only = only.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return call.with_changes(func=cst.parse_expression(f"{source.tile_module}.exp2"), args=[only])


# The scale that all exponentials share: softmax, plain or online ----------------------------------
#
# In softmax, exp(s·x − m) equals exp2 of the same expression with s·log₂e in place of s, because this multiplies the
# maximum m by the same factor as the scores. The scaled values must be used for nothing else.


_KEEPS = ("max", "min", "maximum", "minimum", "where", "reshape", "transpose", "permute", "broadcast_to", "expand_dims")
"""If all operands of these functions have a common factor, so has the result, even if a value is infinite."""


@dataclass(frozen=True)
class ScoreScale:
    """A multiplication (``place``) of a tile by a scalar (``factor``). The result, the scores, has the name
    ``name``."""

    name: str
    place: cst.BinaryOperation
    factor: Expression
    exponentials: tuple[cst.Call, ...]


def scales(source: Source, function: str) -> list[ScoreScale]:
    """Finds the only multiplication that scales every exponent of ``function``; empty if there is none."""
    code = source.functions.get(function)
    if code is None:
        return []
    exponentials = tuple(source.calls("exp", inside=code))
    if not exponentials or source.calls("exp2", inside=code) or any(len(call.args) != 1 for call in exponentials):
        return []
    given = values_by_name(source, code)
    # A name counts as scaled only if all its values are known.
    plain = {name: given[name] for name, times in names_assigned(code).items() if len(given.get(name, ())) == times}
    found = []
    for _, name, value in assignments(source, code):
        match value:
            case cst.BinaryOperation(operator=cst.Multiply()) if (factor := _scalar(code, value)) is not None:
                scaled = _Scaled(source, value)
                names = scaled.closure(name, plain)
                fits = names is not None and all(scaled.scales(call.args[0].value, names) for call in exponentials)
                inside = [call.args[0].value for call in exponentials]
                inside += [value for each in names or () for value in plain[each]]
                if names and fits and not _used_elsewhere(source, code, names, inside):
                    found.append(ScoreScale(name, value, factor, exponentials))
    return found if len(found) == 1 else []


@dataclass(frozen=True)
class _Scaled:
    """Finds the expressions that are multiplied by a factor if the product ``seed`` is multiplied by the factor."""

    source: Source
    seed: cst.BinaryOperation

    def closure(self, name: str, values: Mapping[str, Sequence[Expression]]) -> set[str] | None:
        """If ``name`` scales with the seed, returns it and all names connected with it that also scale; otherwise None.

        Two names are connected if one is computed from the other, directly or through further names. ``values`` holds
        all values of each name. The search starts with all names. It repeatedly removes names with a value that does
        not scale.
        """
        names, before = set(values), set[str]()
        while names != before:
            before = names
            names = {each for each in before if all(self.scales(value, before) for value in values[each])}
        reads = {each: {read for value in values[each] for read in names_read(value)} for each in names}
        seeded = {name} & names
        while seeded:
            more = {each for each in names if reads[each] & seeded}.union(*(reads[each] & names for each in seeded))
            if more <= seeded:
                return seeded
            seeded |= more
        return None

    def scales(self, node: Expression, names: set[str]) -> bool:
        """Returns whether ``node`` scales with the seed, if all of ``names`` do."""
        if node is self.seed or _is_infinite(self.source, node):
            return True
        match node:
            case cst.Name():
                return node.value in names
            case cst.Subscript(value=inside) | cst.UnaryOperation(operator=cst.Minus(), expression=inside):
                return self.scales(inside, names)
            case cst.BinaryOperation(operator=cst.Add() | cst.Subtract()):
                return self.scales(node.left, names) and self.scales(node.right, names)
            case cst.Call():
                return self._called(node, names)
        return False

    def _called(self, call: cst.Call, names: set[str]) -> bool:
        module = f"{self.source.tile_module}."
        called = dotted(call.func)
        if called == f"{module}full" and len(call.args) >= 2:
            return _is_infinite(self.source, call.args[1].value)
        if called not in ("max", "min") and called.removeprefix(module) not in (_KEEPS if module in called else ()):
            tile = call.func.value if isinstance(call.func, cst.Attribute) and call.func.attr.value in _KEEPS else None
            return tile is not None and self.scales(tile, names)
        tiles = [arg.value for arg in call.args if arg.keyword is None]
        if called == f"{module}where":
            return len(tiles) == 3 and all(self.scales(tile, names) for tile in tiles[1:])
        if called in ("max", "min", f"{module}maximum", f"{module}minimum"):
            return all(self.scales(tile, names) for tile in tiles)
        return bool(tiles) and self.scales(tiles[0], names)


def _used_elsewhere(source: Source, code: Function, names: set[str], allowed: Sequence[Expression]) -> bool:
    """Returns whether a name is read outside the ``allowed`` expressions, or in the condition of a ``where``."""
    if any(names_read(call.args[0].value) & names for call in source.calls("where", inside=code) if call.args):
        return True
    targets = source.every(cst.AssignTarget, code)
    known = {node for part in (*allowed, *targets) for node in source.every(cst.Name, part)}
    for node in source.every(cst.Name, code.body):
        above = source.parent(node)
        label = node is getattr(above, "keyword", None) or node is getattr(above, "attr", None)
        if node not in known and node.value in names and not label:
            return True
    return False


def _scalar(function: Function, product: cst.BinaryOperation) -> Expression | None:
    """Returns the factor of ``product`` that is a number or a parameter; None if neither factor is."""
    plain = {param.name.value for param in function.params.params} - set(names_assigned(function.body))
    for side in (product.right, product.left):
        if isinstance(side, (cst.Float, cst.Integer)) or (isinstance(side, cst.Name) and side.value in plain):
            return side
    return None


def _is_infinite(source: Source, node: Expression) -> bool:
    text = source.code(node).replace("'", '"').lstrip("-")
    return text in ('float("inf")', 'float("-inf")', "math.inf", "np.inf")


ENTRY = Exp2()
