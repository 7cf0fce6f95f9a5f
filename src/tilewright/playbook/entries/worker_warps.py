"""Sets the num_worker_warps hint: how many warps share the registers of a tile.

With eight warps instead of four, a tile needs half the registers in each thread. The hint helps where large tiles
spill. But an SM holds a fixed number of threads, so fewer blocks fit. `tune_space` sets the hint together with the tile
sizes.
"""

from __future__ import annotations

from tilewright.playbook.analyses.compiler_hints import Offer, OneHint, hungriest
from tilewright.playbook.base import ANY_LANGUAGE, Effect, EntryDescription, KernelFacts
from tilewright.records import Value

MANY_REGISTERS = 200  # per thread; above this, twice as many threads may be faster


class WorkerWarps(OneHint):
    hint = "num_worker_warps"
    about = EntryDescription(
        id="worker_warps",
        name="num_worker_warps",
        what="sets the number of warps that compute; with 8 instead of 4, a tile needs half as many registers per "
        "thread",
        when="large tiles spill or take all registers of a thread",
        when_not="registers are no limit: by default the compiler takes 4",
        priority={"memory": 4, "balanced": 3, "compute": 4},
        eases=("residency", "issue slots", "bytes in flight", "spills", "tile size"),
        order=170,
        language=ANY_LANGUAGE,
        effect=Effect.assumed(1.0, 1.70, kept=0, of=15),
    )

    def offer(self, facts: KernelFacts, now: Value) -> Offer:
        code = hungriest(facts)
        values = tuple(warps for warps in (8, 4) if warps != (now or 4))
        why = f"{code.registers} registers a thread, {code.local_stores} spill stores"
        limited = code.registers >= MANY_REGISTERS or code.local_stores > 0
        return Offer(values, 1.0 if limited else 0.4, why)


ENTRY = WorkerWarps()
