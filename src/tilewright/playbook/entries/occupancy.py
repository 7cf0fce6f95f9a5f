"""Sets the occupancy hint: how many CTAs the compiler plans for on one SM.

With more CTAs on an SM, some compute while others wait. Each CTA gets fewer registers and less shared memory, so code
may spill. The hint helps where one CTA takes most of an SM.
"""

from __future__ import annotations

from tilewright.hardware.executions import occupancy_of
from tilewright.playbook.analyses.compiler_hints import Offer, OneHint, hungriest
from tilewright.playbook.base import ANY_LANGUAGE, Effect, EntryDescription, KernelFacts
from tilewright.records import Value

ENOUGH = 4  # CTAs on an SM; more CTAs rarely hide more latency
ORDER = {"memory": (4, 2, 8, 1), "balanced": (2, 4, 8, 1), "compute": (2, 4, 1)}
"""The values to try for each kind of bound, the most promising first. The compiler treats 16 and 32 as 8. Where enough
CTAs fit anyway, values that ask for more come first: a layer norm with 127 registers takes 94 µs without the hint, 86
with 4 and 84 with 8 (H200, 2026-11-30)."""


class OccupancyHint(OneHint):
    hint = "occupancy"
    about = EntryDescription(
        id="occupancy",
        name="occupancy",
        what="asks the compiler for more CTAs on an SM, which bounds registers and shared memory of each",
        when="without the hint one CTA takes most of an SM, so that nothing runs while it waits",
        when_not="several CTAs fit already, or the bound on registers makes the code spill",
        priority={"memory": 2, "balanced": 1, "compute": 4},
        eases=("residency", "bytes in flight", "last wave", "spills", "tile size"),
        order=160,
        language=ANY_LANGUAGE,
        effect=Effect.assumed(1.02, 1.60, kept=3, of=12),
    )

    def offer(self, facts: KernelFacts, now: Value) -> Offer:
        code = hungriest(facts)
        fits = occupancy_of(code, facts.board).ctas
        known = (ctas for ctas in ORDER[facts.kind] if ctas != (now or 1))
        values = tuple(sorted(known, key=lambda ctas: ctas <= fits >= ENOUGH))  # which ask for more than fit, first
        why = f"{fits} CTAs fit on an SM: {code.registers} registers, {code.shared_bytes:,} B shared memory"
        return Offer(values, 1.0 if fits < ENOUGH else 0.4, why)


ENTRY = OccupancyHint()
