"""Compiles a Triton kernel by Triton's own compiler again, after it was taken to Tile IR.

A change of the source may be worth more by one route than by the other. So this route, too, is tried at its best, as
`tile_ir_route` is.
"""

from __future__ import annotations

from tilewright.languages.triton.hints import PTX, TILE_IR
from tilewright.playbook.analyses.triton_code import LANGUAGE
from tilewright.playbook.analyses.triton_routes import OtherRoute
from tilewright.playbook.base import Effect, EntryDescription


class PtxRoute(OtherRoute):
    leaves, route = TILE_IR, PTX
    about = EntryDescription(
        id="ptx_route",
        name="PTX route",
        what="the kernel compiled by Triton's compiler instead of through CUDA Tile IR, with the best tiles and hints",
        when="a kernel that was taken to Tile IR, and changed since",
        when_not="the kernel was not changed since the routes were compared",
        priority={"memory": 4, "balanced": 2, "compute": 2},
        eases=("tensor path", "access path"),
        order=262,
        language=LANGUAGE,
        tries=4,
        effect=Effect(1.0, 1.1, "matmul 4096³ bfloat16, best Tile IR 190.3 µs, best PTX 189.0 µs, H200", "2026-11-23"),
        all_values=True,
    )


ENTRY = PtxRoute()
