"""The compiler hints of cuda-tile 1.7.0. The value None lets the compiler choose."""

from __future__ import annotations

from tilewright.space.knobs import Hint

OCCUPANCY = Hint("occupancy", (None, *range(1, 33)), "1 to 32")
NUM_CTAS = Hint("num_ctas", (None, 1, 2, 4, 8, 16), "1, 2, 4, 8, 16")
NUM_WORKER_WARPS = Hint("num_worker_warps", (None, 4, 8), "4, 8", "any")
"""Other values need CUDA toolkit 13.5."""

HINTS = (OCCUPANCY, NUM_CTAS, NUM_WORKER_WARPS, Hint("opt_level", (None, 0, 1, 2, 3), "0 to 3", "listed"))
