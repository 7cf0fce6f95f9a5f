"""The hints of Triton kernels. With the value None, Triton takes its default, or the compiler chooses."""

from __future__ import annotations

from tilewright.languages.base import Hints
from tilewright.languages.cutile.hints import NUM_CTAS, NUM_WORKER_WARPS, OCCUPANCY
from tilewright.space.knobs import Hint

PTX, TILE_IR = "ptx", "tileir"
ROUTE = Hint("route", (PTX, TILE_IR), f"{PTX}, {TILE_IR}", "any")
"""``ptx``, the default: Triton's own compiler. ``tileir``: translated to CUDA Tile IR, for cuTile's compiler."""

HINTS = (
    ROUTE,
    Hint("num_warps", (None, 1, 2, 4, 8, 16, 32), "1, 2, 4, 8, 16, 32"),
    Hint("num_stages", (None, *range(1, 11)), "1 to 10", "listed"),
    NUM_CTAS,
    OCCUPANCY,
    NUM_WORKER_WARPS,
    Hint("launch_cooperative_grid", (None, True), "True", "any"),
    Hint("launch_pdl", (None, True), "True", "any"),
    Hint("maxnreg", (None, *range(24, 256, 8), 255), "a multiple of 8 from 24 to 248, or 255", "listed"),
)


def on_tile_ir(hints: Hints) -> bool:
    """Returns whether the kernel is translated to CUDA Tile IR. Otherwise Triton's own compiler compiles it."""
    return hints.get(ROUTE.name) == TILE_IR
