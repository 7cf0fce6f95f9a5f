"""TileGym's grouped matrix products (`tilegym.ops.group_gemm`), bf16: several products in one persistent launch.

The kernel takes lists of arrays, which cuda-tile does not capture into a CUDA graph: race with ``--launch eager``.
"""

import as_launched

import tilewright as tw

GROUPS = 8

module = tw.editable("tilegym.ops.cutile.group_gemm")


def names(matrix):
    return tuple(f"{matrix}{group}" for group in range(GROUPS))


A, B, C = (names(matrix) for matrix in "abc")


def reference(**given):
    return tuple(given[a] @ given[b] for a, b in zip(A, B, strict=True))


def trusted(**given):
    return tuple(given[a] @ given[b] for a, b in zip(A, B, strict=True))


globals().update(as_launched.tasks(
    "group_gemm",
    module=module,
    call=lambda ops, **given: ops.group_gemm([given[a] for a in A], [given[b] for b in B]),
    arrays=(A, B, C),
    listed="_group_gemm_autotune_configs",
    tensors={
        **{a: tw.Tensor(("M", "K"), "bfloat16") for a in A},
        **{b: tw.Tensor(("K", "N"), "bfloat16") for b in B},
        **{c: tw.Output(("M", "N"), "bfloat16") for c in C},
    },
    reference=reference,
    trusted=trusted,
    flops=lambda M, N, K: 2 * GROUPS * M * N * K,
    independent=("M", "N"),
    constants={"TILE_M": (64, 128, 256), "TILE_N": (128, 256), "TILE_K": (32, 64, 128)},
    hints={"num_ctas": (1, 2), "occupancy": (1, 2), "num_worker_warps": (None, 8)},
    where=(
        lambda TILE_M, TILE_N, num_ctas: 64 * 128 < TILE_M * TILE_N <= 128 * 256 * num_ctas,
        lambda TILE_M, TILE_N, num_ctas, num_worker_warps: num_worker_warps or 128 * 128 * num_ctas >= TILE_M * TILE_N,
        lambda TILE_K, num_ctas: TILE_K <= 64 or num_ctas == 1,
        lambda occupancy, num_worker_warps: occupancy == 1 or num_worker_warps is None,
    ),
    workloads={
        "4096x2048x4096": {"M": 4096, "N": 2048, "K": 4096},
        "2048x4096x1024": {"M": 2048, "N": 4096, "K": 1024},
    },
))  # fmt: skip
