"""Compiles a Triton kernel by Tile IR instead of Triton's own compiler.

The Tile IR route compiles the same source with cuTile's compiler, which plans copies, pipelines and warps by itself.
The route is tried at its best: with several tile sizes and hints, raced as one field. It is tried again after another
change was kept. `descriptors` is tried together with this route, and `ptx_route` is the way back.
"""

from __future__ import annotations

from tilewright.languages.triton.hints import PTX, TILE_IR
from tilewright.playbook.analyses.triton_code import LANGUAGE
from tilewright.playbook.analyses.triton_routes import OtherRoute
from tilewright.playbook.base import Effect, EntryDescription


class TileIrRoute(OtherRoute):
    leaves, route = PTX, TILE_IR
    about = EntryDescription(
        id="tile_ir_route",
        name="Tile IR route",
        what="the kernel compiled through CUDA Tile IR instead of by Triton's compiler, with the best tiles and hints",
        when="products of matrices whose blocks are loaded by descriptors",
        when_not="blocks are loaded through pointers: `descriptors` tries both changes together",
        priority={"memory": 4, "balanced": 2, "compute": 2},
        eases=("tensor path", "access path"),
        order=260,
        language=LANGUAGE,
        tries=4,
        effect=Effect(1.0, 1.2, "matmul with descriptors 217.4 → 187.8 µs, softmax 68.9 → 92.3 µs, H200", "2026-11-22"),
        all_values=True,
    )


ENTRY = TileIrRoute()
