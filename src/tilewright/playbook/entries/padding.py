"""Adds zero padding to tile loads that may reach beyond their array, or removes padding that is never used.

GPUs before sm_90 have no TMA to fill the elements outside an array, so the values there are undetermined. If every
shape that the task serves has only whole tiles, a padding such as -inf has no effect. But it costs select instructions,
and keeps the load off TMA, which fills in only zeros (tileiras 13.4, sm_90 and sm_100).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read
from tilewright.playbook.analyses.removing import without_dead
from tilewright.playbook.analyses.task_code import served_launches
from tilewright.playbook.analyses.tile_reach import ends_with_array, reaches
from tilewright.playbook.base import Effect, EntryDescription, KernelFacts, Site, unless_refused
from tilewright.playbook.rewriting import Rewritable, Rewriting
from tilewright.source.syntax import Function, Source, argument, with_argument
from tilewright.task.task import Launch

ZERO, NONE = "zero", "none"
TMA = 90  # the first compute capability with TMA


class Padding(Rewriting[Rewritable[cst.Call]]):
    about = EntryDescription(
        id="padding",
        name="padding mode",
        what="padding_mode=ZERO on loads that name none, or no padding on loads that are never ragged",
        when="before sm_90 with ragged tiles; or all promised extents are multiples of the tiles: padding that is "
        "not zero keeps the load off TMA",
        when_not="shapes that the task promises and that end within a tile",
        priority={"memory": 8, "balanced": 8, "compute": 9},
        eases=("issue slots", "access path"),
        order=220,
        effect=Effect.assumed(1.0, 1.03),
    )
    missing = "no tile load begins here whose padding can be changed"
    needs_launch = True

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        places = [place for place in self.found(source, facts) if NONE in place.rewrites or facts.sm < TMA]
        served = list(served_launches(facts)) if places else []
        for place in places:
            even = unless_refused(_is_never_ragged, source, place.node, served)
            if ZERO in place.rewrites and even is False:
                found.append(place.site(source, f"no TMA before sm_{TMA}"))
            elif NONE in place.rewrites and even:
                found.append(place.site(source, "every promised extent is a multiple of its tile"))
        return found

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.Call]]:
        for call in source.calls("load", inside=function):
            array, zero = source.code(call.args[0].value), f"{source.spelled('PaddingMode')}.ZERO"
            if argument(call, "padding_mode") is None:
                yield Rewritable(call, f"load of {array}", {ZERO: partial(_with_padding, source, call, zero)})
            else:
                yield Rewritable(call, f"padding of {array}", {NONE: partial(_with_padding, source, call, None)})


def _with_padding(source: Source, call: cst.Call, mode: str | None) -> str:
    before = argument(call, "padding_mode")
    changed = source.changed({call: with_argument(call, "padding_mode", mode)})
    return without_dead(changed, source.function_of(call), names_read(before) if before is not None else ()).text


def _is_never_ragged(source: Source, call: cst.Call, served: Sequence[Launch]) -> bool:
    """Returns whether this load has only whole tiles in each launch."""
    found = reaches(source, call)
    return all(ends_with_array(source, reach, launch) for launch in served for reach in found)


ENTRY = Padding()
