"""TileGym's attention, forward (`tilegym.ops.fmha`): causal or not, in bf16.

On Hopper the wrapper searches a list of Blackwell tiles, and launches the winner with a fixed occupancy of 2.
"""

import as_launched
import attention_reference as attention

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.attention")

globals().update(as_launched.tasks(
    "fmha",
    module=module,
    call=lambda ops, q, k, v, causal: ops.fmha(q, k, v, is_causal=causal),
    arrays=("q", "k", "v", "out"),
    listed="_fmha_autotune_configs",
    tensors=attention.UNGROUPED,
    reference=attention.reference,
    trusted=attention.trusted,
    flops=attention.flops,
    # The kernel loads tiles of keys and values without padding. Behind the last key, memory may hold NaN, which neither
    # the mask (plus -inf) nor a weight of 0 removes.
    serves=lambda S, D: attention.serves(D) and S % 128 == 0,
    independent=("B", "H"),
    constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
    hints={"occupancy": (1, 2, 4), "num_worker_warps": (None, 4, 8)},
    workloads={
        "causal": {"B": 4, "H": 32, "S": 4096, "D": 128, "causal": True},
        "full": {"B": 4, "H": 32, "S": 4096, "D": 128, "causal": False},
        "short": {"B": 8, "H": 16, "S": 1024, "D": 64, "causal": True},
    },
))  # fmt: skip
