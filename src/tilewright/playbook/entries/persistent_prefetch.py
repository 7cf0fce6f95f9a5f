"""Makes a kernel persistent, and loads the tiles of a block's next item while the present item is computed.

A block that computes one item has no next one whose loads could begin earlier. A persistent block has one, but its
loads begin only when the present item is stored, unless the compiler moves them.
"""

from __future__ import annotations

from tilewright.playbook.base import HINTS_OF_TILES, Effect, EntryDescription
from tilewright.playbook.combined import Combined
from tilewright.playbook.entries import persistent, prefetch


class PersistentPrefetch(Combined):
    parts = (persistent.ENTRY, prefetch.ENTRY)
    about = EntryDescription(
        id="persistent_prefetch",
        name="persistent kernel with loads one item ahead",
        what="a grid of SMs × BLOCKS_PER_SM blocks, whose loop begins with the loads of the next item",
        when="many short blocks, each of which waits for its own loads",
        when_not="few or long blocks; tiles that fill the registers",
        priority={"memory": 2, "balanced": 4, "compute": 8},
        order=36,
        effect=Effect.assumed(0.9, 1.4),
        eases=("bytes in flight", "residency", "last wave"),
        together=("rows_per_tile", *HINTS_OF_TILES),
    )


ENTRY = PersistentPrefetch()
