"""C = A · B in bf16 with float32 accumulation, a plain kernel: one block per tile of C, in a grid with two axes."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def matmul(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    row = ct.bid(0)
    column = ct.bid(1)
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


def launch(a, b, c, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(matmul, grid, (a, b, c, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="naive_matmul",
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
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,  # for others, tileiras 13.4 writes outside: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (64,), "TILE_N": (64,), "TILE_K": (32,)},
        shipped={"TILE_M": 64, "TILE_N": 64, "TILE_K": 32},
    ),
    workloads={
        "4096": {"M": 4096, "N": 4096, "K": 4096},
        "up_projection": {"M": 2048, "N": 14336, "K": 4096},
    },
)
