"""Makes a Triton kernel persistent: as many blocks as the GPU holds at once, each with a loop over several items.

An item is the work of one block of the old grid. Descriptors are made once for all items, and the loads of an item can
begin while the results of the last one are stored. The change adds a knob, ``BLOCKS_PER_SM``. On the Tile IR route, the
best latency differs with the loop, so both are tried together.
"""

from __future__ import annotations

import math

import libcst as cst

from tilewright.languages.cutile.hints import NUM_CTAS
from tilewright.languages.triton.hints import ROUTE, TILE_IR, on_tile_ir
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.block_loop import block_ids, is_persistent, refuse_several_items, with_items
from tilewright.playbook.analyses.configuration_sites import current, read_changes, written_in_space
from tilewright.playbook.analyses.triton_code import LANGUAGE, jit_functions, spelled
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, literal

KNOB, BLOCKS_PER_SM = "BLOCKS_PER_SM", (1, 2)
LATENCIES = (4, 6)
WAVES = 2  # the change is worth trying with more items per SM than this


class TritonPersistent(Entry):
    about = EntryDescription(
        id="triton_persistent",
        name="persistent Triton kernel",
        what="a loop over the items in a grid of SMs × BLOCKS_PER_SM blocks; descriptors are made before the loop",
        when="more than two items an SM, most of all products on the Tile IR route",
        when_not="few or long items; blocks of unequal length, which the hardware's own scheduler balances better",
        priority={"memory": 3, "balanced": 2, "compute": 2},
        eases=("last wave", "traffic"),
        order=255,
        language=LANGUAGE,
        effect=Effect(1.0, 1.5, "matmul 4096³ bfloat16 on Tile IR, 128 × 128: 200.9 → 189.2 µs, H200", "2026-11-24"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = task_code.launched_here(source)
        if kernel != facts.kernel or kernel not in jit_functions(source) or is_persistent(source, kernel):
            return []
        sms = facts.board.sms
        items = max(math.prod(launch.grid) for launch in facts.launches)
        latencies = LATENCIES if on_tile_ir(current(facts)) else ()
        values: tuple[Value, ...] = (
            *(f"{KNOB}={blocks}" for blocks in BLOCKS_PER_SM),
            *(f"{KNOB}=1,num_stages={latency}" for latency in latencies),
        )
        why = f"up to {items:,} blocks on {sms} SMs: {items / sms:.0f} each"
        site = Site.at(source, source.functions[kernel], "one block an item", values, why=why)
        return [site] if items > WAVES * sms and self.applies(source, site) else []

    def apply(self, source: Source, site: Site, value: Value) -> str:
        kernel = site.function_here(source).name.value
        refuse_several_items(source, kernel)
        changes = read_changes(str(value))
        if not isinstance(blocks := changes.pop(KNOB, None), int):
            raise NotApplicable(f"'{value}' gives no {KNOB}")
        call = next(iter(block_ids(source, kernel)))
        first, step = (f"{spelled(source, call, name)}(0)" for name in ("program_id", "num_programs"))
        grid = task_code.flat_grid(source)
        knob = task_code.fresh_name(grid.source, KNOB)
        source = with_items(grid, kernel, f"for {{item}} in range({first}, {{items}}, {step}):")
        for parameter in ("config", "hardware"):
            source = task_code.with_launch_parameter(source, parameter)
        source = task_code.with_knob(source, knob, sorted(BLOCKS_PER_SM), blocks)
        source = Source(source.name, written_in_space(source, changes)) if changes else source
        source, clusters = _with_clusters(source)
        return task_code.with_grid(source, f"(min({grid.items}, hardware.sms * config.{knob}{clusters}),)").text


def _with_clusters(source: Source) -> tuple[Source, str]:
    """Returns the source, and the text that divides the grid by the hint num_ctas: with it, a block runs as several
    CTAs, on as many SMs. A space on the Tile IR route gets the hint, so that it can be tuned later."""
    shipped = argument(task_code.space_of(source), "shipped")
    assert isinstance(shipped, cst.Dict), "`with_knob` has changed it"
    if task_code.entry_of(shipped, NUM_CTAS.name) is None:
        route = task_code.entry_of(shipped, ROUTE.name)
        if route is None or literal(route) != TILE_IR:
            return source, ""
        source = task_code.with_knob(source, NUM_CTAS.name, (None,), None, hint=True)
    return source, f" // (config.{NUM_CTAS.name} or 1)"


ENTRY = TritonPersistent()
