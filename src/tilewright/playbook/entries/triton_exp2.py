"""Replaces tl.exp(x) by tl.exp2(x · log₂ e), with the factor in a subtraction or beside a constant.

The hardware has an instruction for 2ˣ only, so every exp costs a multiplication by log₂ e. If x is a difference, such
as a score minus the maximum, subtraction and multiplication become one fused multiply-add. The result rounds
differently.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tilewright.playbook.analyses.dataflow import loops_around
from tilewright.playbook.analyses.expressions import LOG2_E, fused_exponent, scaled_exponent
from tilewright.playbook.analyses.triton_code import LANGUAGE, jit_functions, launched_code, tl_calls
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Source, dotted

FUSED, SCALED = "fused", "scaled"
MOST_SITES = 6


class TritonExp2(Entry):
    about = EntryDescription(
        id="triton_exp2",
        name="tl.exp as tl.exp2",
        what="tl.exp(x) becomes tl.exp2(x · log₂ e), the factor folded into a subtraction or a constant",
        when="exponentials of whole tiles: softmax, attention, sigmoid",
        when_not="a few exponentials of a reduced tile, or a kernel that waits for memory",
        priority={"compute": 8, "balanced": 6, "memory": 7},
        eases=("conversions and special functions", "issue slots"),
        order=270,
        language=LANGUAGE,
        effect=Effect.assumed(1.0, 1.05),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        calls = [call for function in launched_code(source, facts).values() for call in _exponentials(source, function)]
        found = []
        for call in sorted(calls, key=lambda call: not loops_around(source, call))[:MOST_SITES]:
            inside = call.args[0].value
            fused = unless_refused(fused_exponent, source, inside, "") is not None
            values = (FUSED, SCALED) if fused else (SCALED,)
            found.append(Site.at(source, call, f"exp of {source.code(inside)}", values))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        calls = [call for function in jit_functions(source).values() for call in _exponentials(source, function)]
        call = site.node(source, calls, "no call of tl.exp begins here")
        # Triton can read a constant of the module only if it is a constexpr, so the number is written at its use.
        make = fused_exponent if value == FUSED else scaled_exponent
        exponent = make(source, call.args[0].value, repr(LOG2_E))
        return source.replaced({call: cst.parse_expression(f"{dotted(call.func)}2({exponent})")})


def _exponentials(source: Source, function: cst.CSTNode) -> Iterator[cst.Call]:
    """Yields calls of ``tl.exp``."""
    for call in tl_calls(source, function, "exp", "math.exp"):
        if len(call.args) == 1 and call.args[0].keyword is None and "." in dotted(call.func):
            yield call


ENTRY = TritonExp2()
