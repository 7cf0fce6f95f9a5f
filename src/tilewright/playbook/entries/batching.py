"""Gives each block several small items instead of one. An item is the work of one block of the old grid.

The change applies to thousands of blocks that copy or scale a few elements each: starting such a block takes as long as
its work. It adds a knob, ``SLOTS``, the number of items in a block. Fewer blocks are harder to balance over SMs.
"""

from __future__ import annotations

import math

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.block_loop import is_persistent, refuse_several_items, with_items
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

SLOTS = (2, 4, 8)
VALUES: tuple[Value, ...] = (4, 2, 8, "4 unrolled", "2 unrolled")
SMALL_BYTES = 32 << 10  # a block that moves more takes much longer than its start
INTENSITY = 10.0  # FLOP per byte; above this, a block is not limited by its copies alone
WAVES = 16  # the fewest blocks per SM: with eight slots, two blocks per SM are left


class Batching(Entry):
    about = EntryDescription(
        id="batching",
        name="several items a block",
        what="consecutive items in slots of one block: a short loop, or unrolled",
        when="thousands of blocks of a few KiB each, all doing the same",
        when_not="launches of different kernels, or with arguments of their own: a task has one launch, so joining "
        "them needs the caller's code; and items that are large, or fewer than 16 an SM",
        priority={"memory": 6, "balanced": 8, "compute": 9},
        eases=("tile size", "traffic"),
        order=150,
        effect=Effect.assumed(1.0, 1.3, kept=1, of=5),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = task_code.own_kernel(facts, source)
        if not kernel or is_persistent(source, kernel):
            return []
        small = []
        for workload, launch in zip(facts.workloads, facts.launches, strict=True):
            blocks, traffic = math.prod(launch.grid), facts.task.traffic(workload.dims)
            is_copy = facts.task.work(workload.dims) <= INTENSITY * traffic
            if is_copy and blocks >= WAVES * facts.board.sms and traffic / blocks <= SMALL_BYTES:
                small.append((traffic / blocks, blocks))
        if not small:
            return []
        share, blocks = min(small)
        why = f"{blocks:,} blocks of {share / 1024:.1f} KiB each"
        site = Site.at(source, source.kernels[kernel], "one small item a block", VALUES, why=why)
        return [site] if self.applies(source, site) else []

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        refuse_several_items(source, kernel)
        slots, unrolled = int(str(value).split()[0]), str(value).endswith("unrolled")
        grid = task_code.flat_grid(source)
        knob = task_code.fresh_name(grid.source, "SLOTS")
        header = f"for {{item}} in range(ct.bid(0) * {knob}, min((ct.bid(0) + 1) * {knob}, {{items}})):"
        if unrolled:
            slot = task_code.fresh_in(source, kernel, "slot")
            header = f"for {slot} in ct.static_iter(range({knob})):\n    {{item}} = ct.bid(0) * {knob} + {slot}"
        source = with_items(grid, kernel, header, guarded=unrolled)
        source = task_code.with_grid(source, f"(-(-{grid.items} // config.{knob}),)")
        source = task_code.with_kernel_constant(source, kernel, knob)
        return task_code.with_knob(source, knob, SLOTS, slots).text


ENTRY = Batching()
