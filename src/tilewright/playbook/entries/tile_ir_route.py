"""Compiles a Triton kernel by Tile IR instead of Triton's own compiler.

The Tile IR route compiles the same source with cuTile's compiler, which plans copies, pipelines and warps by itself. So
``num_warps`` has no effect there and is omitted. `descriptors` tries this route together with a change of the source.
"""

from __future__ import annotations

import libcst as cst

from tilewright.languages.triton.hints import TILE_IR
from tilewright.languages.triton.hints import on_tile_ir as is_on_tile_ir
from tilewright.playbook.analyses.configuration_sites import current
from tilewright.playbook.analyses.triton_code import LANGUAGE
from tilewright.playbook.analyses.triton_routes import on_tile_ir
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Source


class TileIrRoute(Entry):
    about = EntryDescription(
        id="tile_ir_route",
        name="Tile IR route",
        what="the kernel compiled through CUDA Tile IR instead of by Triton's compiler, without num_warps",
        when="products of matrices whose blocks are loaded by descriptors",
        when_not="blocks are loaded through pointers: `descriptors` tries both changes together",
        priority={"memory": 4, "balanced": 2, "compute": 2},
        order=260,
        language=LANGUAGE,
        effect=Effect(0.6, 1.2, "matmul with descriptors 217.4 → 187.8 µs, softmax 68.9 → 92.3 µs, H200", "2026-11-22"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        spaces = source.calls_named("Space")
        if is_on_tile_ir(current(facts)) or len(spaces) != 1 or unless_refused(on_tile_ir, source) is None:
            return []
        return [Site(facts.kernel, *source.place(spaces[0]), "route in space", (TILE_IR,))]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        site.node(source, source.every(cst.Call), "no space begins here")
        return on_tile_ir(source).text


ENTRY = TileIrRoute()
