"""Sets the num_ctas hint. Then 2 or 4 CTAs of a cluster compute one tile, and load common data once, by multicast.

The hint helps products with large tiles on sm_90, sm_100 and their relatives. With the hint, the launch has fewer
independent blocks to spread over the SMs.
"""

from __future__ import annotations

from tilewright.hardware.architectures import architecture
from tilewright.playbook.analyses.compiler_hints import Offer, OneHint, hungriest
from tilewright.playbook.base import ANY_LANGUAGE, Effect, EntryDescription, KernelFacts
from tilewright.records import Value


class Clusters(OneHint):
    hint = "num_ctas"
    about = EntryDescription(
        id="clusters",
        name="num_ctas",
        what="splits each tile among 2 or 4 CTAs of a cluster, which load what they share once, by multicast",
        when="products with large tiles on sm_90 and sm_100 and their relatives",
        when_not="sm_80 to 89 ignore it, sm_120 and 121 have no multicast; small grids have too few tiles",
        priority={"memory": 6, "balanced": 5, "compute": 3},
        eases=("tile size", "traffic"),
        order=180,
        language=ANY_LANGUAGE,
        effect=Effect.assumed(0.95, 1.30, kept=0, of=11),
    )

    def offer(self, facts: KernelFacts, now: Value) -> Offer:
        values = tuple(ctas for ctas in architecture(facts.board.arch).clusters if ctas != (now or 1))
        if max(values, default=1) == 1 and now in (None, 1):
            values = ()
        code = hungriest(facts)
        products = code.tensor_path != "none"
        why = f"products by {code.tensor_path}" if products else "no products share what is loaded"
        return Offer(values, 1.0 if products else 0.3, why)


ENTRY = Clusters()
