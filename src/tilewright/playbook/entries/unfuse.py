"""Divides a kernel that spills registers into stages that hold less at a time, in one launch.

    p, q = zeros, zeros                     if bid(1) == 0:
    for k in range(n):                          p = zeros
        p += a[k] * x[k]                        for k in range(n): p += a[k] * x[k]
        q += b[k] * x[k]              →         store(y, p)
    store(y, p)                             else:
    store(z, q)                                 …, store(z, q)

A task is one launch of one kernel, so a second kernel is not possible. Blocks of their own for one output do the same:
the registers of a kernel are the most of its branches, not their sum. The grid gets an axis of two stages.

The other form keeps the blocks. It loads tiles again after a reduction or a loop, in place of holding them in registers
(`analyses.reloading`). Both forms compute what they computed before, by the same operations, from the same elements.
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.block_loop import block_ids, grid_extents
from tilewright.playbook.analyses.compiler_hints import hungriest
from tilewright.playbook.analyses.expressions import imported
from tilewright.playbook.analyses.reloading import reloaded
from tilewright.playbook.analyses.stages import Cut, Kernel, by_output, understood
from tilewright.playbook.base import (
    HINTS_OF_TILES,
    Effect,
    Entry,
    EntryDescription,
    KernelFacts,
    NotApplicable,
    Site,
    refusal,
    unless_refused,
)
from tilewright.records import Value
from tilewright.source.syntax import Source, number

AGAIN = "tiles loaded again"
APART = "blocks of its own for "
MOST_AXES = 3  # of a grid
MOST_CUTS = 2  # the outputs that may be apart, of all outputs those whose stages repeat the fewest lines


class Unfuse(Entry):
    about = EntryDescription(
        id="unfuse",
        name="stages with fewer registers",
        what="blocks of its own for one output, or tiles loaded again after a reduction, in place of held registers",
        when="the machine code spills registers, and the kernel has several outputs or holds tiles over a reduction",
        when_not="nothing is spilled: both forms load more than before",
        priority={"memory": 3, "balanced": 3, "compute": 3},
        eases=("spills", "residency"),
        together=HINTS_OF_TILES,
        order=198,
        effect=Effect.assumed(0.8, 2.0),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        why, kernel = spills(facts), facts.kernel
        if not why or kernel not in source.kernels or shared_memory(facts):
            return []
        values = unless_refused(_values, source, kernel, bool(task_code.own_kernel(facts, source)))
        what = f"stages of {kernel}"
        return [Site.at(source, source.kernels[kernel], what, tuple(values), why=why)] if values else []

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        if facts.kernel not in source.kernels:
            return ""
        if not spills(facts):
            return "its machine code spills no registers"
        return shared_memory(facts) or refusal(_every_change, source, facts.kernel)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return _changed(source, site.function_here(source).name.value, value)


def spills(facts: KernelFacts) -> str:
    """Returns what the machine code spills, in words; "" if it spills nothing.

    The number of registers alone says nothing: of a kernel with a matrix product it is 255 for the smallest tiles."""
    code = hungriest(facts) if facts.codes else None
    if code is None or not code.local_stores:
        return ""
    return f"{code.stack_bytes} B spilled by each thread, {code.local_stores} spill stores"


def shared_memory(facts: KernelFacts) -> str:
    """Returns why a load after a store may read what was stored, though the two arrays have different names; "" if it
    may not."""
    for name, output in facts.task.outputs.items():
        if source := output.in_place_of or output.updates:
            return f"its output {name} shares the memory of {source}, which would be loaded after it is stored"
    return ""


def stages_in_text(source: Source, kernel: str) -> list[str]:
    """Returns the values that the text of a kernel allows, whatever its launch. Raises `NotApplicable` if there are
    none."""
    parts = understood(source, kernel)
    cuts = {output: unless_refused(by_output, parts, output) for output in parts.outputs}
    repeated = {output: cut.repeated for output, cut in cuts.items() if cut is not None}
    # Of two outputs, both have the same two stages.
    most = 1 if len(parts.outputs) == 2 else MOST_CUTS
    values = [f"{APART}{output}" for output in sorted(repeated, key=lambda output: repeated[output])[:most]]
    if refused := refusal(reloaded, parts):
        if not values:
            raise NotApplicable(refused)
        return values
    return [*values, AGAIN]


def _values(source: Source, kernel: str, launched_here: bool) -> list[str]:
    found = [each for each in stages_in_text(source, kernel) if launched_here or each == AGAIN]
    return [each for each in found if unless_refused(_changed, source, kernel, each)]


def _every_change(source: Source, kernel: str) -> None:
    for value in stages_in_text(source, kernel):
        _changed(source, kernel, value)


def _changed(source: Source, kernel: str, value: Value) -> str:
    if value == AGAIN:
        return _reloaded(source, kernel)
    if not isinstance(value, str) or not value.startswith(APART):
        raise NotApplicable(f"'{value}' is no value of this entry; known: {AGAIN}, {APART}OUTPUT")
    return _apart(source, kernel, value.removeprefix(APART))


def _reloaded(source: Source, kernel: str) -> str:
    body = reloaded(understood(source, kernel))
    return source.replaced({source.kernels[kernel].body: body})


def _apart(source: Source, kernel: str, output: str) -> str:
    by_output(understood(source, kernel), output)  # its refusal comes before that of the grid
    written, named = task_code.grid_axes(source)
    while len(written) > 1 and number(written[-1]) == 1:
        written.pop()
    axes = [f"{named}[{place}]" if named else source.code(axis) for place, axis in enumerate(written)]
    asked = {*block_ids(source, kernel).values(), *grid_extents(source, kernel).values()}
    if len(axes) == MOST_AXES or any(axis >= len(axes) for axis in asked):
        raise NotApplicable(f"{kernel} has no axis of the grid left for its stages")
    parts = understood(source, kernel)
    stage = f"{imported(source, 'bid')}({len(axes)})"
    source = source.changed({parts.function.body: _staged(parts, by_output(parts, output), stage)})
    return task_code.with_grid(source, f"({', '.join(axes)}, 2)").text


def _staged(parts: Kernel, cut: Cut, stage: str) -> cst.BaseSuite:
    """Returns the body of the kernel with one branch for each stage. ``stage``: the text of the stage's number."""
    first, second = (cst.IndentedBlock(body=list(statements)) for statements in cut.stages)
    test = cst.parse_expression(f"{stage} == 0")
    words = cst.EmptyLine(
        comment=cst.Comment("# the stages run in different blocks: neither holds what only the other needs")
    )
    branch = cst.If(test=test, body=first, orelse=cst.Else(body=second), leading_lines=[words])
    return parts.function.body.with_changes(body=[*parts.docstring, *cut.shared, branch])


ENTRY = Unfuse()
