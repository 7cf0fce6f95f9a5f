"""Lets the blocks with the longest loops start first, where a causal kernel starts them last.

The hardware starts blocks in the order of their ids. If a loop of the kernel runs longer for larger ids, the longest
blocks start last, and most SMs wait for them. The change counts the ids from the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.block_loop import block_ids, is_persistent
from tilewright.playbook.analyses.dataflow import dependent, names_read, pairs_of, range_of, target_names
from tilewright.playbook.analyses.expressions import fitting, imported
from tilewright.playbook.analyses.loop_bounds import Header, counted
from tilewright.playbook.base import Effect, EntryDescription, KernelFacts, Site
from tilewright.playbook.rewriting import Rewritable, Rewriting
from tilewright.source.syntax import Function, Source

REVERSED = "longest first"
CLEARLY = 1.05
"""By which factor the mean id, weighted by the lengths of loops, exceeds the mean id. In causal attention it is 1.33,
and 1.08 if the position of the first query is drawn at random because it is loaded."""


@dataclass(frozen=True, eq=False)
class BlockId(Rewritable[cst.Call]):
    """A call that reads the id of a block along ``axis``, on which the end of ``loop`` depends.

    is_sure: whether the start of no loop depends on the id. If one does, the loops may be equally long: a window.
    """

    axis: int
    loop: cst.For
    is_sure: bool


class LongestFirst(Rewriting[BlockId]):
    about = EntryDescription(
        id="longest_first",
        name="longest blocks first",
        what="block ids counted from the end, so that the blocks with the longest loops start first",
        when="the end of a loop grows with the block's id, as in causal attention; there are several waves of blocks",
        when_not="blocks of equal length; persistent kernels; neighbouring blocks that share data in the L2",
        priority={"memory": 6, "balanced": 4, "compute": 4},
        eases=("last wave",),
        order=135,
        effect=Effect.assumed(1.0, 1.2),
    )
    missing = "no loop grows with the block id that is read here"
    needs_launch = True

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        return [
            place.site(source) for place in self.found(source, facts) if place.is_sure or _grows(source, facts, place)
        ]

    def places(self, source: Source, function: Function) -> Iterator[BlockId]:
        yield from () if is_persistent(source, function.name.value) else _growing(source, function)


def _reversed(source: Source, calls: Iterable[cst.Call], axis: int) -> str:
    """Returns the text with all ``calls``, which read the id along ``axis``, counted from the end."""
    last = f"{imported(source, 'num_blocks')}({axis}) - 1"
    return source.replaced({call: fitting(source, call, f"{last} - {source.code(call)}") for call in calls})


def _growing(source: Source, function: Function) -> Iterator[BlockId]:
    """Yields the block ids on which the end of a loop depends."""
    loops = {loop: bounds for loop in source.every(cst.For, function) if (bounds := range_of(loop))}
    ends = {loop: bounds[0] if len(bounds) == 1 else bounds[1] for loop, bounds in loops.items()}
    starts = [bounds[0] for bounds in loops.values() if len(bounds) > 1]
    ids = block_ids(source, function.name.value)
    for call, axis in ids.items():
        line = next((above for above in source.parents(call) if isinstance(above, cst.SimpleStatementLine)), None)
        if line is None or source.calls("num_blocks", inside=line):
            continue
        names = dependent(source, function, _assigned_from(source, line, call))
        growing = next((loop for loop, end in ends.items() if names & names_read(end)), None)
        if growing is not None:
            is_sure = not any(names & names_read(start) for start in starts)
            what = f"a loop that grows with the block id of axis {axis}"
            same = [each for each, other in ids.items() if other == axis]
            yield BlockId(call, what, {REVERSED: partial(_reversed, source, same, axis)}, axis, growing, is_sure)


def _grows(source: Source, facts: KernelFacts, place: BlockId) -> bool:
    """Returns whether the blocks of the launches with larger ids have clearly longer loops than the others."""
    header, block = Header.of(source, place.loop), f"(1 + bid({place.axis}))"
    iterations = header.iterations(*header.whole)
    function = source.functions[source.function_of(place.loop)]
    blocks = counted(source, facts, function, place.loop, "1", block)
    weighted = counted(source, facts, function, place.loop, iterations, f"{block} * {iterations}")
    if blocks is None or weighted is None:
        return False
    return weighted.some * blocks.every > CLEARLY * weighted.every * blocks.some


def _assigned_from(source: Source, line: cst.SimpleStatementLine, call: cst.Call) -> set[str]:
    """Returns the names that a statement assigns from ``call``: only ``row`` for ``bid(0)`` in
    ``row, head = bid(0), bid(1)``."""
    for assign in line.body:
        for target, value in pairs_of(assign) if isinstance(assign, cst.Assign) else ():
            if value is not None and call in source.every(cst.Call, value):
                return set(target_names(target))
    return set()


ENTRY = LongestFirst()
