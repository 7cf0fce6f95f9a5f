"""Writes exp(x) as exp2(x · log₂ e), with the factor folded into a multiplication that is there anyway.

The hardware has an instruction for 2ˣ only, so every exp costs a multiplication. The factor can join the scale of the
scores, the subtraction of the maximum (one fused multiply-add) or a constant. It rounds differently.
No gain is recorded yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import loops_around
from tilewright.playbook.analyses.expressions import factor_of, fitting, log2_e_name, with_log2_e
from tilewright.playbook.analyses.log2_domain import ScoreScale, scales
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Changes, Source, argument, number, with_argument

FOLDED, FUSED, SCALED, APPROXIMATE = "folded", "fused", "scaled", "approximate"
MOST_SITES = 6
NO_SCALE = "no scale that all exponentials share"


class Exp2(Entry):
    about = EntryDescription(
        id="exp2",
        name="exp as exp2",
        what="ct.exp(x) becomes ct.exp2(x · log₂ e), the factor folded into a scale, a subtraction or a constant",
        when="exponentials of whole tiles: softmax, attention, sigmoid",
        when_not="a few exponentials of a reduced tile, or a kernel that waits for memory",
        priority={"compute": 8, "balanced": 6, "memory": 7},
        order=100,
        effect=Effect.assumed(1.0, 1.05),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
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
            values: tuple[str, ...] = (FUSED,) if _difference(inside) is not None else ()
            values += (SCALED, APPROXIMATE) if argument(call, "rounding_mode") is None else (SCALED,)
            found.append(Site.at(source, call, f"exp of {source.code(inside)}", values))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if value == FOLDED:
            known = {scale.place: scale for scale in scales(source, site.kernel)}
            return _folded(source, site.kernel, known[site.node(source, known, NO_SCALE)])
        call = site.node(source, [call for call in source.calls("exp") if call.args], "no call of exp")
        if value == APPROXIMATE:
            return _approximate(source, call)
        log2_e = log2_e_name(source, site.kernel)
        inside = call.args[0].value
        new = _fused(source, inside, log2_e) if value == FUSED else _scaled(source, inside, log2_e)
        return with_log2_e(source.changed({call: _exp2(source, call, cst.parse_expression(new))}), log2_e)


def _approximate(source: Source, call: cst.Call) -> str:
    if argument(call, "rounding_mode") is not None:
        raise NotApplicable("the exponential names its rounding already")
    mode = f"{source.tile_module}.RoundingMode.APPROX"
    return source.replaced({call: with_argument(call, "rounding_mode", mode)})


def _folded(source: Source, function: str, scale: ScoreScale) -> str:
    """The scores of a function in units of log₂: one constant factor more, and exp2 everywhere."""
    log2_e = log2_e_name(source, function)
    factor = fitting(source, scale.factor, f"{factor_of(source, scale.factor)} * {log2_e}")
    calls: Changes = {call: _exp2(source, call, call.args[0].value) for call in scale.exponentials}
    return with_log2_e(source.changed({scale.factor: factor, **calls}), log2_e)


def _exp2(source: Source, call: cst.Call, inside: cst.BaseExpression) -> cst.Call:
    """The call of exp2 that replaces a call of exp, without a rounding mode, which exp2 does not take."""
    only = call.args[0].with_changes(value=inside)
    if len(call.args) > 1:
        only = only.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return call.with_changes(func=cst.parse_expression(f"{source.tile_module}.exp2"), args=[only])


def _fused(source: Source, inside: cst.BaseExpression, log2_e: str) -> str:
    difference = _difference(inside)
    if difference is None:
        raise NotApplicable("exp of no difference: nothing to fuse the factor with")
    left, right = (factor_of(source, one) for one in difference)
    return f"{left} * {log2_e} - {right} * {log2_e}"


def _scaled(source: Source, inside: cst.BaseExpression, log2_e: str) -> str:
    """The factor next to a constant, if there is one: the compiler folds the two into one."""
    if isinstance(inside, cst.UnaryOperation) and isinstance(inside.operator, cst.Minus) and not inside.lpar:
        return f"{factor_of(source, inside.expression)} * -{log2_e}"
    if isinstance(inside, cst.BinaryOperation) and isinstance(inside.operator, cst.Multiply):
        for constant, other in ((inside.right, inside.left), (inside.left, inside.right)):
            if number(constant) is not None or (isinstance(constant, cst.Name) and constant.value.isupper()):
                return f"{factor_of(source, other)} * ({source.code(constant)} * {log2_e})"
    return f"{factor_of(source, inside)} * {log2_e}"


def _difference(node: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Subtract):
        return node.left, node.right
    return None


ENTRY = Exp2()
