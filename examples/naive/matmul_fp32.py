"""C = A · B in float32, a plain kernel: the loaded tiles are multiplied without conversion."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def matmul_fp32(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    row = ct.bid(0)
    column = ct.bid(1)
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], TILE_K)):
        left = ct.load(a, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, column), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(c, (row, column), total)


def reference(a, b):
    return a @ b


def trusted(a, b):
    import torch

    if a.is_cuda:
        torch.set_float32_matmul_precision("high")  # cuBLAS in TF32, which is the precision declared below
        return a @ b
    return in_tf32(a) @ in_tf32(b)  # the same where there are no tensor cores


def in_tf32(x):
    """Rounded to the 10 bits of mantissa that TF32 has."""
    import torch

    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def launch(a, b, c, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(matmul_fp32, grid, (a, b, c, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="naive_matmul_fp32",
    tensors={
        "a": tw.Tensor(("M", "K"), "float32"),
        "b": tw.Tensor(("K", "N"), "float32"),
        "c": tw.Output(("M", "N"), "float32"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    # The user accepts TF32 for a float32 product, as with torch's "high". This kernel is more exact.
    precision="tf32",
    serves=lambda M, N: min(M, N) > 1 or M * N % 4 == 0,  # for others, tileiras 13.4 writes outside: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (64,), "TILE_N": (64,), "TILE_K": (16,)},
        shipped={"TILE_M": 64, "TILE_N": 64, "TILE_K": 16},
    ),
    workloads={
        "2048": {"M": 2048, "N": 2048, "K": 2048},
        "projection": {"M": 4096, "N": 1024, "K": 4096},
    },
)
