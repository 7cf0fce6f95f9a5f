"""TileGym's batched matrix product (`tilegym.ops.bmm`), bf16: the persistent kernel with its Hopper list."""

import as_launched

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.bmm")


def trusted(a, b):
    import torch

    return torch.bmm(a, b)


globals().update(as_launched.tasks(
    "bmm",
    module=module,
    call=lambda ops, a, b: ops.bmm(a, b),
    arrays=("a", "b", "c"),
    listed="_bmm_autotune_configs",
    tensors={
        "a": tw.Tensor(("B", "M", "K"), "bfloat16"),
        "b": tw.Tensor(("B", "K", "N"), "bfloat16"),
        "c": tw.Output(("B", "M", "N"), "bfloat16"),
    },
    reference=lambda a, b: a @ b,
    trusted=trusted,
    flops=lambda B, M, N, K: 2 * B * M * N * K,
    independent=("B", "M", "N"),
    constants={
        "TILE_M": (128, 256), "TILE_N": (128, 256), "TILE_K": (64, 128),
        "GROUP_SIZE_M": (4, 8, 16), "LATENCY": (3, 6),
    },
    hints={"num_ctas": (1, 2), "occupancy": (1,), "num_worker_warps": (None, 8)},
    where=(
        lambda TILE_M, TILE_N, num_ctas: 128 * 128 * num_ctas >= TILE_M * TILE_N,
        lambda TILE_K, num_ctas: TILE_K <= 64 or num_ctas == 1,
    ),
    workloads={
        "16x2048": {"B": 16, "M": 2048, "N": 2048, "K": 2048},
        "64x1024": {"B": 64, "M": 1024, "N": 1024, "K": 1024},
        "8x4096": {"B": 8, "M": 4096, "N": 4096, "K": 1024},
    },
))  # fmt: skip
