"""Turns loads and stores of tiles into gathers and scatters: the reverse of `tile_load`.

A tile load through TMA goes by way of shared memory, which pays where a tile is shared or read again. A kernel that
uses each element once can move it straight between memory and registers. It then computes an address and a bound for
each element. On an H200 the change was kept in 1 of 4 tries (bench/recorded/h200-naive-2026-11-21.json).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.playbook.analyses.gather_access import gathered
from tilewright.playbook.analyses.tile_access import convertible, with_accesses
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

EVERY = "every access"
LOADS = "loads only"
STORES = "stores only"
KINDS = {EVERY: ("load", "store"), LOADS: ("load",), STORES: ("store",)}
PRODUCTS = ("mma", "mma_scaled", "matmul")


class GatherLoad(Entry):
    about = EntryDescription(
        id="gather_load",
        name="gather and scatter",
        what="tile loads and stores as gathers and scatters, straight between memory and registers",
        when="each element is read or written once: elementwise kernels, inversions by scatter",
        when_not="tiles that feed a product of matrices, or are read again by other blocks",
        priority={"memory": 5, "balanced": 6},
        order=20,
        effect=Effect.assumed(0.8, 1.4, kept=1, of=4),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        found = []
        for name, function in source.tile_code.items():
            possible = list(convertible(source, name, KINDS[EVERY], gathered))
            if not possible or source.calls(*PRODUCTS, inside=function):
                continue
            both = len({tile_call(source, one.call) for one in possible}) > 1
            arrays = [source.code(one.call.args[0].value) for one in possible]
            promise = 1 / max(map(arrays.count, arrays))  # 1 where each element may be used once
            values = (EVERY, STORES, LOADS) if both else (EVERY,)
            found.append(Site.at(source, function, f"{len(possible)} tile loads and stores", values, promise))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        site.function_here(source)
        kinds = KINDS.get(str(value))
        if kinds is None:
            raise NotApplicable(f"'{value}' is no value of this entry")
        return with_accesses(source, site.kernel, lambda now: convertible(now, site.kernel, kinds, gathered))


ENTRY = GatherLoad()
