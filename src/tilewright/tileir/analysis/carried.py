"""How much a kernel carries through its loops in the results of matrix products: its accumulators.

On sm_90 an accumulator lies in the registers of the threads that issue the product, and must stay there from one
iteration to the next. An accumulator that is larger than those registers always spills.
"""

from __future__ import annotations

from tilewright.tileir.read.tree import KernelEntry, Op
from tilewright.tileir.run.slicing import LEAVES

WORD_BITS = 32
BITS = {"f64": 64, "i64": 64, "f32": 32, "i32": 32, "tf32": 32, "f16": 16, "bf16": 16}
REGISTERS = 255
"""That a thread can have."""
THREADS = 32
"""Of a warp."""
WORKER_WARPS = 4
"""Where the hint num_worker_warps is not given: every sm_90 product kernel in bench/recorded/ has as many."""


def accumulator_words(entry: KernelEntry) -> int:
    """32-bit registers that the accumulators of one loop take, over all threads of a cluster; of the largest one."""
    products = {name: op for op in entry.walk() if op.name.startswith("mma") for name in op.results}
    return max((_words(op, products) for op in entry.walk() if op.name in ("for", "loop")), default=0)


def must_spill(entry: KernelEntry, num_ctas: int | None, num_worker_warps: int | None) -> bool:
    """Whether the accumulators do not fit into the registers of the threads that an sm_90 kernel has for them."""
    threads = THREADS * (num_worker_warps or WORKER_WARPS) * (num_ctas or 1)
    return accumulator_words(entry) > (REGISTERS - 1) * threads


def _words(loop: Op, products: dict[str, Op]) -> int:
    ends = (op for op in loop.regions[0].body if op.name in LEAVES)
    carried = {name for op in ends for name in op.operands.get("operands", ()) if name in products}
    tiles = (products[name].tile() for name in carried)
    return sum(tile.size * BITS.get(str(tile.element), 0) // WORD_BITS for tile in tiles)
