"""Turns the gathers of a product into tile accesses, and lets 2 or 4 CTAs of a cluster compute one tile.

Only tile accesses load by multicast: the CTAs of a cluster load common data once. With gathers, a cluster loads it
several times; with tile accesses but without a cluster, each block loads its own copy.
"""

from __future__ import annotations

from tilewright.playbook.base import Effect, EntryDescription
from tilewright.playbook.combined import Combined
from tilewright.playbook.entries import clusters, tile_load


class TileClusters(Combined):
    parts = (tile_load.ENTRY, clusters.ENTRY)
    about = EntryDescription(
        id="tile_clusters",
        name="tile access in clusters",
        what="tile accesses instead of gathers, and num_ctas, so that CTAs of a cluster load what they share once",
        when="products on sm_90 and sm_100 whose operands are gathered",
        when_not="no products; real gathers; GPUs without multicast",
        priority={"balanced": 5, "compute": 3},
        order=37,
        effect=Effect.assumed(0.9, 1.5),
        eases=("access path", "bytes in flight", "tile size", "traffic"),
        together=("occupancy", "latency"),
    )


ENTRY = TileClusters()
