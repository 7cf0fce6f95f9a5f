"""Gives each block several small items, in slots, instead of one.

It applies to thousands of blocks that copy or scale a few elements each: the start of such a block takes as long as its
work. It costs a new knob, ``SLOTS``, and leaves fewer blocks to balance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.playbook.analyses.block_loop import is_persistent, one_item_kernel, with_items
from tilewright.playbook.analyses.task_code import (
    flat_grid,
    fresh_in,
    fresh_name,
    starts,
    with_grid,
    with_kernel_constant,
    with_knob,
)
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

SLOTS = (2, 4, 8)
VALUES: tuple[Value, ...] = (4, 2, 8, "4 unrolled", "2 unrolled")
SMALL_BYTES = 32 << 10
"""Of all tensors, for each block. With more, the start of a block hardly counts."""
INTENSITY = 10.0
"""FLOP per byte from which a block is no copy."""
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
        effect=Effect.assumed(1.0, 1.3, kept=1, of=5),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        kernel = starts(facts, source)
        if not kernel or is_persistent(source, kernel):
            return ()
        small = []
        for workload, launch in zip(facts.workloads, facts.launches, strict=True):
            blocks, traffic = math.prod(launch.grid), facts.task.traffic(workload.dims)
            is_copy = facts.task.work(workload.dims) <= INTENSITY * traffic
            if is_copy and blocks >= WAVES * facts.board.sms and traffic / blocks <= SMALL_BYTES:
                small.append((traffic / blocks, blocks))
        if not small:
            return ()
        share, blocks = min(small)
        why = f"{blocks:,} blocks of {share / 1024:.1f} KiB each"
        site = Site.at(source, source.kernels[kernel], "one small item a block", VALUES, why=why)
        return (site,) if self.applies(source, site) else ()

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = one_item_kernel(source, site)
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
        source = with_grid(source, f"(-(-{grid.items} // config.{knob}),)")
        source = with_kernel_constant(source, kernel, knob)
        return with_knob(source, knob, SLOTS, slots).text


ENTRY = Batching()
