"""A dense product of matrices for Hopper in CuTe DSL. Its knobs: tile, cluster, schedule, persistent grid, swizzle.

    tilewright inspect examples/cute_gemm.py --arch sm_90
    tilewright tune examples/cute_gemm.py

With the schedule `cooperative`, two warpgroups share a tile; with `pingpong`, they take turns. Without a GPU,
candidates are compiled, screened and predicted. They are checked and raced on a GPU only (docs/cute-dsl.md).
Needs the extra: pip install 'tilewright[cutedsl]', under NVIDIA's own licence
"""

from cute_dsl.hopper_gemm import Gemm

import tilewright as tw


def launch(a, b, c, M, N, config, hardware):
    tile, cluster = (config.TILE_M, config.TILE_N, config.TILE_K), (config.CLUSTER_M, config.CLUSTER_N)
    clusters = -(-M // (tile[0] * cluster[0])) * -(-N // (tile[1] * cluster[1]))
    if config.PERSISTENT:
        clusters = min(clusters, hardware.sms // (cluster[0] * cluster[1]))
    gemm = Gemm(tile, cluster, config.SCHEDULE == "pingpong", config.SWIZZLE, clusters)
    return tw.Launch(gemm, (clusters,), (a, b, c))


def fits_registers(TILE_M, TILE_N, SCHEDULE):
    """A thread has at most 128 accumulators. A cooperative tile has 64 rows or more for each of two warpgroups."""
    rows = TILE_M if SCHEDULE == "pingpong" else TILE_M // 2
    return rows >= 64 and rows * TILE_N <= 128 * 128


task = tw.Task(
    name="cute_gemm",
    tensors={
        "a": tw.Tensor(("M", "K"), "bfloat16"),
        "b": tw.Tensor(("K", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=lambda a, b: a @ b,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    serves=lambda M, N, K: N % 8 == 0 and K % 8 == 0,  # TMA needs rows of whole 16 bytes
    space=tw.Space(
        constants={
            "TILE_M": (64, 128, 256), "TILE_N": (128, 256), "TILE_K": (64,), "CLUSTER_M": (1, 2), "CLUSTER_N": (1, 2),
            "SCHEDULE": ("cooperative", "pingpong"), "PERSISTENT": (False, True), "SWIZZLE": (1, 8),
        },
        shipped={
            "TILE_M": 128, "TILE_N": 256, "TILE_K": 64, "CLUSTER_M": 2, "CLUSTER_N": 1,
            "SCHEDULE": "cooperative", "PERSISTENT": True, "SWIZZLE": 8,
        },
        where=[
            fits_registers,
            lambda CLUSTER_M, CLUSTER_N: CLUSTER_M * CLUSTER_N <= 2,
            lambda SCHEDULE, PERSISTENT: PERSISTENT or SCHEDULE == "cooperative",  # taking turns needs several tiles
        ],
    ),
    workloads={"4096": {"M": 4096, "N": 4096, "K": 4096}, "odd": {"M": 1000, "N": 520, "K": 3000}},
    independent=("M",),
)  # fmt: skip
