"""Tunes the hints of Tile IR's compiler for a Triton kernel: the second of two steps.

The first step takes the kernel to Tile IR (`descriptors`, `tile_ir_route`). The class of the kernel
(`inspect.kernel_class`) decides which hints are tried: clusters for products of matrices, occupancy for elementwise
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.hardware.prediction_error import ChangeKind
from tilewright.inspect.kernel_class import class_of
from tilewright.languages.triton.hints import on_tile_ir
from tilewright.playbook.analyses.configuration_sites import current, places, read_changes, written
from tilewright.playbook.analyses.triton_code import LANGUAGE
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Source


class TileIrHints(Entry):
    about = EntryDescription(
        id="tile_ir_hints",
        name="Tile IR hints",
        what="occupancy, clusters, warps and latency for Tile IR's compiler, by the kind of the kernel",
        when="the kernel was taken to Tile IR and its hints were not tuned since",
        when_not="the kernel is compiled by Triton's own compiler, which has other options",
        priority={"memory": 3, "balanced": 3, "compute": 3},
        eases=("residency", "tile size"),
        order=265,
        language=LANGUAGE,
        effect=Effect.assumed(1.02, 1.40),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        now = current(facts)
        found = class_of(facts.task, facts.workloads[0], facts.board) if on_tile_ir(now) else None
        if found is None:
            return ()
        changes = [each for each in found.configurations if any(now[name] != value for name, value in each.items())]
        why = f"a kernel of the class {found.name}: {found.about}"
        return [
            place.site(f"hints in {place.what}", tuple(map(place.value, changes)), 1.0, why)
            for place in places(source, facts)
        ]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return written(source, site, read_changes(str(value)))

    def kind(self, value: Value) -> ChangeKind:
        return "hints"


ENTRY = TileIrHints()
