"""Lets the blocks with the longest loops start first, where a causal kernel starts them last.

The hardware starts blocks in the order of their ids. If a loop of the kernel runs longer for larger ids, the longest
blocks start last, and most SMs wait for them. The change counts the ids from the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.block_loop import block_ids, is_persistent
from tilewright.playbook.analyses.dataflow import dependent, names_read, pairs_of, range_of, target_names
from tilewright.playbook.analyses.expressions import fitting, imported
from tilewright.playbook.base import Effect, EntryDescription
from tilewright.playbook.rewriting import Rewritable, Rewriting
from tilewright.source.syntax import Function, Source

REVERSED = "longest first"


class LongestFirst(Rewriting[Rewritable[cst.Call]]):
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

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.Call]]:
        for call, axis in () if is_persistent(source, function.name.value) else _growing(source, function):
            what = f"a loop that grows with the block id of axis {axis}"
            yield Rewritable(call, what, {REVERSED: partial(_reversed, source, call, axis)})


def _reversed(source: Source, call: cst.Call, axis: int) -> str:
    blocks = imported(source, "num_blocks")
    return source.replaced({call: fitting(source, call, f"{blocks}({axis}) - 1 - {source.code(call)}")})


def _growing(source: Source, function: Function) -> Iterator[tuple[cst.Call, int]]:
    """Yields the block ids, with their axes, on which the end of a loop depends, but not its start."""
    loops = [bounds for loop in source.every(cst.For, function) if (bounds := range_of(loop))]
    for call, axis in block_ids(source, function.name.value).items():
        line = next((above for above in source.parents(call) if isinstance(above, cst.SimpleStatementLine)), None)
        if line is None or source.calls("num_blocks", inside=line):
            continue
        names = dependent(source, function, _assigned_from(source, line, call))
        ends = [bounds[0] if len(bounds) == 1 else bounds[1] for bounds in loops]
        starts = [bounds[0] for bounds in loops if len(bounds) > 1]
        if any(names & names_read(end) for end in ends) and not any(names & names_read(start) for start in starts):
            yield call, axis


def _assigned_from(source: Source, line: cst.SimpleStatementLine, call: cst.Call) -> set[str]:
    """Returns the names that a statement assigns from ``call``: only ``row`` for ``bid(0)`` in
    ``row, head = bid(0), bid(1)``."""
    for assign in line.body:
        for target, value in pairs_of(assign) if isinstance(assign, cst.Assign) else ():
            if value is not None and call in source.every(cst.Call, value):
                return set(target_names(target))
    return set()


ENTRY = LongestFirst()
