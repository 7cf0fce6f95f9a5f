"""Adds zero padding to tile loads that may reach beyond their array, or removes padding that is never used.

GPUs before sm_90 have no TMA to fill the elements outside an array, so the values there are undetermined. If every
shape that the task serves has only whole tiles, a padding such as -inf has no effect, but costs a select instruction.
"""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read, without_dead
from tilewright.playbook.analyses.task_code import extent_of, own_kernel
from tilewright.playbook.analyses.tile_reach import Reach, ends_with_array, reaches
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, with_argument

ZERO, NONE = "zero", "none"
TMA = 90  # the first compute capability with TMA


class Padding(Entry):
    about = EntryDescription(
        id="padding",
        name="padding mode",
        what="padding_mode=ZERO on loads that name none, or no padding on loads that are never ragged",
        when="before sm_90 with ragged tiles; or all promised extents are multiples of the tiles",
        when_not="shapes that the task promises and that end within a tile",
        priority={"memory": 8, "balanced": 8, "compute": 9},
        eases=("issue slots", "access path"),
        order=220,
        effect=Effect.assumed(1.0, 1.03),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = own_kernel(facts, source)
        found: list[Site] = []
        for call in source.calls("load", inside=source.functions[kernel]) if kernel else ():
            array = source.code(call.args[0].value)
            padded = argument(call, "padding_mode")
            even = _is_never_ragged(source, kernel, call, facts)
            if padded is None and facts.sm < TMA and even is False:
                found.append(Site.at(source, call, f"load of {array}", (ZERO,), why=f"no TMA before sm_{TMA}"))
            elif padded is not None and even:
                why = "every promised extent is a multiple of its tile"
                found.append(Site.at(source, call, f"padding of {array}", (NONE,), why=why))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        calls = source.calls("load", inside=site.function(source))
        call = site.node(source, calls, f"no tile load of {site.kernel} begins here")
        padded = argument(call, "padding_mode")
        if value == ZERO and padded is None:
            mode = f"{source.spelled('PaddingMode')}.ZERO"
            return source.replaced({call: with_argument(call, "padding_mode", mode)})
        if value == NONE and padded is not None:
            changed = source.changed({call: with_argument(call, "padding_mode", None)})
            return without_dead(changed, site.kernel, names_read(padded)).text
        raise NotApplicable(f"the padding of this load is '{value}' already")


def _is_never_ragged(source: Source, kernel: str, call: cst.Call, facts: KernelFacts) -> bool | None:
    """Returns whether this load has only whole tiles for every shape that the task serves; None if not known."""

    def even() -> bool:
        found = reaches(source, call)
        pairs = [(reach, workload) for reach in found for workload in facts.workloads]
        whole = all(ends_with_array(source, kernel, reach, facts, workload) for reach, workload in pairs)
        return whole and all(_is_fixed(source, kernel, reach, facts) for reach in found)

    return unless_refused(even)


def _is_fixed(source: Source, kernel: str, reach: Reach, facts: KernelFacts) -> bool:
    """Returns whether the task refuses extents along this axis that differ by one from the workloads' extents."""
    extent = extent_of(source, kernel, reach.array, reach.axis)
    if extent is None or extent.isdigit():
        return extent is not None
    for workload in facts.workloads:
        size = workload.dims.get(extent)
        if not isinstance(size, int):
            return False
        if any(facts.task.promises({**workload.dims, extent: size + by}) for by in (1, -1)):
            return False
    return True


ENTRY = Padding()
