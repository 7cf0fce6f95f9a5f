"""Makes a kernel persistent: starts as many blocks as the GPU holds at once, each with a loop over several items. An
item is the work of one block of the old grid.

The change saves the start of thousands of blocks. Data that all items share is loaded once. The loads of an item can
begin while the results of the previous item are stored. The change adds a knob, ``BLOCKS_PER_SM``. It makes a kernel
slower if its items take unequal time.
"""

from __future__ import annotations

import math

from tilewright.hardware.executions import occupancy_of
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.block_loop import blocks_per_sm, is_persistent, refuse_several_items, with_items
from tilewright.playbook.analyses.passed_ids import with_passed_ids
from tilewright.playbook.base import HINTS_OF_TILES, Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

BLOCKS_PER_SM = (1, 2, 4, 8)
WAVES = 2  # the change is worth trying with more items per SM than this


class Persistent(Entry):
    about = EntryDescription(
        id="persistent",
        name="persistent scheduling",
        what="a loop over the items in a grid of SMs × BLOCKS_PER_SM blocks; loads that all items share move out of it",
        when="more than two items an SM, each of them short",
        when_not="few or long items; blocks of unequal length, which the hardware's own scheduler balances better",
        priority={"memory": 2, "balanced": 2, "compute": 5},
        eases=("last wave", "bytes in flight", "residency", "traffic"),
        order=30,
        effect=Effect.assumed(1.0, 1.5, kept=2, of=11),
        together=("rows_per_tile", *HINTS_OF_TILES),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = task_code.own_kernel(facts, source)
        if not kernel or any(is_persistent(source, name) for name in source.called_by([kernel])):
            return []
        sms = facts.board.sms
        items = max(math.prod(launch.grid) for launch in facts.launches)
        resident = min((occupancy_of(code, facts.board).ctas for code in facts.codes.values()), default=2)
        values = sorted(BLOCKS_PER_SM, key=lambda blocks: abs(math.log2(blocks / max(resident, 1))))
        why = f"up to {items:,} blocks on {sms} SMs: {items / sms:.0f} each; an SM holds {resident}"
        site = Site.at(source, source.kernels[kernel], "one block an item", tuple(values), why=why)
        return [site] if items > WAVES * sms and self.applies(source, site) else []

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        source = with_passed_ids(source, kernel)
        refuse_several_items(source, kernel)
        grid = task_code.flat_grid(source)
        knob = task_code.fresh_name(grid.source, "BLOCKS_PER_SM")
        source = with_items(grid, kernel, "for {item} in range(ct.bid(0), {items}, ct.num_blocks(0)):")
        source, resident = blocks_per_sm(source, kernel, knob)
        source = task_code.with_grid(source, f"(min({grid.items}, {resident}),)")
        return task_code.with_knob(source, knob, sorted(BLOCKS_PER_SM), value).text


ENTRY = Persistent()
