"""C = A · B in bf16 with float32 accumulation.

A persistent kernel: as many blocks as fit on the GPU at the same time loop over the tiles of C. They go in bands of
GROUP_SIZE_M rows of tiles, so that the tiles of B that a band shares stay in the L2.
"""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def matmul(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int],
           GROUP_SIZE_M: ct.Constant[int]):  # fmt: skip
    rows, columns = ct.cdiv(c.shape[0], TILE_M), ct.cdiv(c.shape[1], TILE_N)
    in_band = GROUP_SIZE_M * columns
    for tile in range(ct.bid(0), rows * columns, ct.num_blocks(0)):
        top = tile // in_band * GROUP_SIZE_M
        height = min(rows - top, GROUP_SIZE_M)  # the last band may have fewer rows
        row, column = top + tile % in_band % height, tile % in_band // height
        total = ct.zeros((TILE_M, TILE_N), ct.float32)
        for k in range(ct.cdiv(a.shape[1], TILE_K)):
            left = ct.load(a, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
            right = ct.load(b, (k, column), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
            total = ct.mma(left, right, total)
        ct.store(c, (row, column), total.astype(c.dtype))


def reference(a, b):
    return a @ b


def trusted(a, b):
    return a @ b  # torch's own product, on the device


def launch(a, b, c, M, N, config, hardware):
    tiles = -(-M // config.TILE_M) * -(-N // config.TILE_N)
    resident = hardware.sms * (config.occupancy or 1) // (config.num_ctas or 1)
    args = (a, b, c, config.TILE_M, config.TILE_N, config.TILE_K, config.GROUP_SIZE_M)
    return tw.Launch(matmul, (min(tiles, resident),), args)


def large_enough(TILE_M, TILE_N):
    return TILE_M * TILE_N >= 64 * 128


def one_hint_at_a_time(occupancy, num_ctas, num_worker_warps, TILE_K):
    set_ = sum(hint is not None for hint in (occupancy, num_ctas, num_worker_warps))
    return set_ <= (1 if TILE_K == 64 else 0)


task = tw.Task(
    name="matmul",
    tensors={
        "a": tw.Tensor(("M", "K"), "bfloat16"),
        "b": tw.Tensor(("K", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,  # for others, tileiras 13.4 writes outside C: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (64, 128, 256), "TILE_N": (64, 128, 256), "TILE_K": (32, 64), "GROUP_SIZE_M": (8,)},
        hints={"occupancy": (None, 2), "num_ctas": (None, 2), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "GROUP_SIZE_M": 8,
                 "occupancy": None, "num_ctas": None, "num_worker_warps": None},
        where=(large_enough, one_hint_at_a_time),
    ),
    workloads={
        "4096": {"M": 4096, "N": 4096, "K": 4096},
        "8192": {"M": 8192, "N": 8192, "K": 8192},
        "up_projection": {"M": 2048, "N": 14336, "K": 4096},
        "odd": {"M": 4000, "N": 4097, "K": 2000},
    },
)
