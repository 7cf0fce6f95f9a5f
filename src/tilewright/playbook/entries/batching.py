"""Entry K: several small items a block, in slots, instead of one each.

The catalogue's K is about many tiny launches of one kernel that become one. A task of Tilewright has one launch,
so what is left of it is the same inside the launch: blocks that copy or scale a few elements each, whose start
costs as much as their work. A slot beyond the last item does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.playbook.analyses.block_loop import is_persistent
from tilewright.playbook.analyses.grids import flat_grid, fresh_in, starts
from tilewright.playbook.analyses.items import one_item_kernel, with_items
from tilewright.playbook.analyses.task_code import fresh_name, with_grid, with_kernel_constant, with_knob
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

SLOTS = (2, 4, 8)
VALUES: tuple[Value, ...] = (4, 2, 8, "4 unrolled", "2 unrolled")
SMALL_BYTES = 32 << 10
"""Of all tensors for each block; above it, the start of a block is no part of its time that counts."""
INTENSITY = 10.0
"""FLOP per byte from which a block is no copy (P-05)."""
WAVES = 16
"""Blocks an SM, so that with eight slots there is still work for all."""


class Batching(Entry):
    about = EntryDescription(
        id="batching",
        name="several items a block",
        what="consecutive items in slots of one block: a short loop, or unrolled",
        when="thousands of blocks of a few KiB each, all doing the same",
        when_not="launches of different kernels, or with arguments of their own: a task has one launch, so joining "
        "them needs the caller's code; and items that are large, or fewer than 16 an SM",
        priority={"memory": 6, "balanced": 8, "compute": 9},
        order=150,
        effect=Effect(1.0, 1.3, "requirements K1 K (+10 to 70 %, for separate launches)", "2026-11-20"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        kernel = starts(facts, source)
        if not kernel or is_persistent(source, kernel):
            return ()
        small = []
        for workload in facts.workloads:
            blocks = math.prod(facts.launch(workload).grid)
            traffic = facts.task.traffic(workload.dims)
            if facts.task.work(workload.dims) > INTENSITY * traffic:
                continue
            share = traffic / blocks
            if blocks >= WAVES * facts.board.sms and share <= SMALL_BYTES:
                small.append((share, blocks))
        if not small:
            return ()
        line, column = source.place(source.kernels[kernel])
        share, blocks = min(small)
        why = f"{blocks:,} blocks of {share / 1024:.1f} KiB each"
        site = Site(kernel, line, column, "one small item a block", VALUES, why=why)
        try:
            self.apply(source, site, VALUES[0])
        except NotApplicable:
            return ()
        return (site,)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        name, kernel = source.name, one_item_kernel(source, site)
        slots = int(str(value).split()[0])
        grid = flat_grid(source)
        knob = fresh_name(grid.source, "SLOTS")
        if str(value).endswith("unrolled"):
            slot = fresh_in(source, kernel, "slot")
            item = f"for {slot} in ct.static_iter(range({knob})):\n    {{item}} = ct.bid(0) * {knob} + {slot}"
        else:
            last = f"min((ct.bid(0) + 1) * {knob}, {{items}})"
            item = f"for {{item}} in range(ct.bid(0) * {knob}, {last}):"
        source = with_items(grid, kernel, item, guarded="unrolled" in str(value))
        source = Source(name, with_grid(source, f"(-(-{grid.items} // config.{knob}),)"))
        source = Source(name, with_kernel_constant(source, kernel, knob))
        return with_knob(source, knob, SLOTS, slots)


ENTRY = Batching()
