"""TileGym's matrix product (`tilegym.ops.matmul`), bf16: one block a tile, blocks in groups of eight rows."""

import as_launched

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.matmul")


def trusted(a, b):
    return a @ b


globals().update(as_launched.tasks(
    "matmul",
    module=module,
    call=lambda ops, a, b: ops.matmul(a, b),
    arrays=("a", "b", "c"),
    listed="_matmul_autotune_configs",
    tensors={
        "a": tw.Tensor(("M", "K"), "bfloat16"),
        "b": tw.Tensor(("K", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=lambda a, b: a @ b,
    trusted=trusted,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    constants={"TILE_SIZE_M": (64, 128, 256), "TILE_SIZE_N": (128, 256), "TILE_SIZE_K": (32, 64, 128)},
    hints={"num_ctas": (1, 2), "occupancy": (1, 2), "num_worker_warps": (None, 8)},
    where=(
        # twice the warps hold twice the accumulators
        lambda TILE_SIZE_M, TILE_SIZE_N, num_ctas, num_worker_warps: (
            128 * 128 * num_ctas * (2 if num_worker_warps else 1) >= TILE_SIZE_M * TILE_SIZE_N
        ),
        lambda TILE_SIZE_M, TILE_SIZE_N: TILE_SIZE_M * TILE_SIZE_N >= 128 * 128,
        lambda TILE_SIZE_K, num_ctas: TILE_SIZE_K <= 64 or num_ctas == 1,
        lambda occupancy, num_worker_warps: occupancy == 1 or num_worker_warps is None,
    ),
    workloads={
        "4096": {"M": 4096, "N": 4096, "K": 4096},
        "8192": {"M": 8192, "N": 8192, "K": 8192},
        "tall": {"M": 16384, "N": 1024, "K": 4096},
    },
))  # fmt: skip
