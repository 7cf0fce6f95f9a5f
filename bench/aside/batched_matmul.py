"""C = A · B for each matrix of a batch, in bf16: a grid with three axes."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def batched_matmul(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    batch, row, column = ct.bid(2), ct.bid(1), ct.bid(0)
    ZERO = ct.PaddingMode.ZERO
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[2], TILE_K)):
        left = ct.load(a, (batch, row, k), (1, TILE_M, TILE_K), padding_mode=ZERO).reshape((TILE_M, TILE_K))
        right = ct.load(b, (batch, k, column), (1, TILE_K, TILE_N), padding_mode=ZERO).reshape((TILE_K, TILE_N))
        total = ct.mma(left, right, total)
    ct.store(c, (batch, row, column), total.astype(c.dtype).reshape((1, TILE_M, TILE_N)))


def reference(a, b):
    return a @ b


def trusted(a, b):
    return a @ b  # torch's own product, on the device


def launch(a, b, c, B, M, N, config):
    grid = (-(-N // config.TILE_N), -(-M // config.TILE_M), B)
    return tw.Launch(batched_matmul, grid, (a, b, c, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="batched_matmul",
    tensors={
        "a": tw.Tensor(("B", "M", "K"), "bfloat16"),
        "b": tw.Tensor(("B", "K", "N"), "bfloat16"),
        "c": tw.Output(("B", "M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda B, M, N, K: 2 * B * M * N * K,
    independent=("B", "M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,  # for others, tileiras 13.4 writes outside: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (64, 128), "TILE_N": (64, 128, 256), "TILE_K": (32, 64)},
        hints={"occupancy": (None, 2), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 64, "TILE_N": 128, "TILE_K": 64, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={"32x1024": {"B": 32, "M": 1024, "N": 1024, "K": 512}, "heads": {"B": 64, "M": 1024, "N": 1024, "K": 64}},
)
