"""The playbook: what the loop tries, one file an entry. `base.py` says what an entry is."""

from __future__ import annotations

from tilewright.playbook.base import Entry
from tilewright.playbook.entries.allow_tma import ENTRY as ALLOW_TMA
from tilewright.playbook.entries.approximate import ENTRY as APPROXIMATE
from tilewright.playbook.entries.batching import ENTRY as BATCHING
from tilewright.playbook.entries.check_bounds import ENTRY as CHECK_BOUNDS
from tilewright.playbook.entries.clusters import ENTRY as CLUSTERS
from tilewright.playbook.entries.divisible import ENTRY as DIVISIBLE
from tilewright.playbook.entries.exp2 import ENTRY as EXP2
from tilewright.playbook.entries.flush_to_zero import ENTRY as FLUSH_TO_ZERO
from tilewright.playbook.entries.gather_load import ENTRY as GATHER_LOAD
from tilewright.playbook.entries.hoisting import ENTRY as HOISTING
from tilewright.playbook.entries.latency import ENTRY as LATENCY
from tilewright.playbook.entries.occupancy import ENTRY as OCCUPANCY
from tilewright.playbook.entries.padding import ENTRY as PADDING
from tilewright.playbook.entries.persistent import ENTRY as PERSISTENT
from tilewright.playbook.entries.rows_per_tile import ENTRY as ROWS_PER_TILE
from tilewright.playbook.entries.static_shapes import ENTRY as STATIC_SHAPES
from tilewright.playbook.entries.swizzle import ENTRY as SWIZZLE
from tilewright.playbook.entries.tf32 import ENTRY as TF32
from tilewright.playbook.entries.tf32 import LOSSY as TF32_LOSSY
from tilewright.playbook.entries.tile_load import ENTRY as TILE_LOAD
from tilewright.playbook.entries.tile_sizes import ENTRY as TILE_SIZES
from tilewright.playbook.entries.tokens import ENTRY as TOKENS
from tilewright.playbook.entries.tune_space import ENTRY as TUNE_SPACE
from tilewright.playbook.entries.worker_warps import ENTRY as WORKER_WARPS

ENTRIES: tuple[Entry, ...] = (
    TILE_LOAD, GATHER_LOAD, PERSISTENT, TUNE_SPACE, TF32, TF32_LOSSY, LATENCY, ALLOW_TMA, TILE_SIZES, EXP2,
    FLUSH_TO_ZERO, APPROXIMATE, SWIZZLE, TOKENS, BATCHING, OCCUPANCY, WORKER_WARPS, CLUSTERS, ROWS_PER_TILE,
    HOISTING, CHECK_BOUNDS, PADDING,
    STATIC_SHAPES, DIVISIBLE,
)  # fmt: skip
"""In the order of the catalogue K1; which is tried first is decided by `optimizing/choosing.py`."""
