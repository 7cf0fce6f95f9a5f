"""Entry B: persistent scheduling. As many blocks as the GPU holds at once walk over the items, instead of one each.

Saves the start of thousands of blocks, loads once what all items share, and lets the loads of the next item
begin while the last one is still stored. The launch starts ``SMs × BLOCKS_PER_SM`` blocks, a new knob.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.block_loop import is_persistent
from tilewright.playbook.analyses.grids import flat_grid, starts
from tilewright.playbook.analyses.items import one_item_kernel, with_items
from tilewright.playbook.analyses.task_code import fresh_name, space_of, with_grid, with_knob, with_launch_parameter
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, number

BLOCKS_PER_SM = (2, 4, 1, 8)
WAVES = 2
"""Items an SM from which K1 B calls persistence worth trying."""


class Persistent(Entry):
    about = EntryDescription(
        id="persistent",
        name="persistent scheduling",
        what="a loop over the items in a grid of SMs × BLOCKS_PER_SM blocks; loads that all items share move out of it",
        when="more than two items an SM, each of them short",
        when_not="few or long items; blocks of unequal length, which the hardware's own scheduler balances better",
        priority={"memory": 2, "balanced": 2, "compute": 5},
        order=30,
        effect=Effect(
            1.0, 1.5, "requirements K1 B (+50 to 300 %, from far below the roofline); P-22 decides", "2026-08"
        ),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        kernel = starts(facts, source)
        if not kernel or is_persistent(source, kernel):
            return ()
        sms = facts.board.sms
        items = max(math.prod(facts.launch(workload).grid) for workload in facts.workloads)
        if items <= WAVES * sms:
            return ()
        line, column = source.place(source.kernels[kernel])
        why = f"up to {items:,} blocks on {sms} SMs: {items / sms:.0f} each"
        site = Site(kernel, line, column, "one block an item", BLOCKS_PER_SM, why=why)
        try:
            self.apply(source, site, BLOCKS_PER_SM[0])
        except NotApplicable:
            return ()
        return (site,)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        name, kernel = source.name, one_item_kernel(source, site)
        grid = flat_grid(source)
        knob = fresh_name(grid.source, "BLOCKS_PER_SM")
        source = with_items(grid, kernel, "for {item} in range(ct.bid(0), {items}, ct.num_blocks(0)):")
        for parameter in ("config", "hardware"):
            source = Source(name, with_launch_parameter(source, parameter))
        resident = f"hardware.sms * config.{knob}{_clusters(source, kernel)}"
        source = Source(name, with_grid(source, f"(min({grid.items}, {resident}),)"))
        return with_knob(source, knob, sorted(BLOCKS_PER_SM), value)


def _clusters(source: Source, kernel: str) -> str:
    """A block is a cluster of num_ctas CTAs (X-11), so that fewer of them fill the GPU."""
    hints = argument(space_of(source), "hints")
    if hints is not None and '"num_ctas"' in source.code(hints).replace("'", '"'):
        return " // (config.num_ctas or 1)"
    decorator = source.kernel_decorator(source.kernels[kernel])
    if decorator is not None and isinstance(decorator.decorator, cst.Call):
        fixed = number(argument(decorator.decorator, "num_ctas"))
        if isinstance(fixed, int) and fixed > 1:
            return f" // {fixed}"
    return ""


ENTRY = Persistent()
