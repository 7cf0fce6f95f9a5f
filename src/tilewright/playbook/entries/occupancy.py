"""The occupancy hint: how many CTAs the compiler plans for on one SM."""

from __future__ import annotations

from tilewright.playbook.analyses.compiler_hints import Offer, OneHint, hungriest, resident
from tilewright.playbook.base import Effect, EntryDescription, KernelFacts
from tilewright.records import Value

ENOUGH = 4
"""CTAs on an SM from which more of them rarely hide more."""
ORDER = {"memory": (4, 2, 8, 1), "balanced": (2, 4, 8, 1), "compute": (2, 4, 1)}
"""K3: 1 to 4 for compute, 4 to 8 for balanced and reductions; 16 and 32 never differ from 8 (X-09)."""


class OccupancyHint(OneHint):
    hint = "occupancy"
    about = EntryDescription(
        id="occupancy",
        name="occupancy",
        what="asks the compiler for more CTAs on an SM, which bounds registers and shared memory of each",
        when="without the hint one CTA takes most of an SM, so that nothing runs while it waits",
        when_not="several CTAs fit already, or the bound on registers makes the code spill",
        priority={"memory": 2, "balanced": 1, "compute": 3},
        order=160,
        effect=Effect(1.02, 1.60, "K8: 2 to 15 %; cutile-facts 7.1: one CTA an SM without it", "2026-11"),
    )

    def offer(self, facts: KernelFacts, now: Value) -> Offer:
        code = hungriest(facts)
        fits = resident(facts, code)
        values = tuple(one for one in ORDER[facts.kind] if one != (now or 1))
        why = f"{fits} CTAs fit on an SM: {code.registers} registers, {code.shared_bytes:,} B shared memory"
        return Offer(values, 1.0 if fits < ENOUGH else 0.4, why)


ENTRY = OccupancyHint()
