"""The hints of Triton kernels. None: Triton's default, or the compiler's choice."""

from __future__ import annotations

from tilewright.languages.cutile.hints import NUM_CTAS
from tilewright.space.knobs import Hint

HINTS = (
    Hint("num_warps", (None, 1, 2, 4, 8, 16, 32), "1, 2, 4, 8, 16, 32"),
    Hint("num_stages", (None, *range(1, 11)), "1 to 10", "listed"),
    NUM_CTAS,
    Hint("maxnreg", (None, *range(24, 256, 8)), "a multiple of 8 from 24 to 248", "listed"),
)
