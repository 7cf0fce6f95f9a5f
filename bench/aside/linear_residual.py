"""y = relu(x · weightᵀ) + residual in bf16, the weight as torch stores it."""

import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def linear_residual(
    x, weight, residual, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]
):
    row, column = ct.bid(0), ct.bid(1)
    ZERO = ct.PaddingMode.ZERO
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(x.shape[1], TILE_K)):
        left = ct.load(x, (row, k), (TILE_M, TILE_K), padding_mode=ZERO)
        right = ct.load(weight, (column, k), (TILE_N, TILE_K), padding_mode=ZERO)
        total = ct.mma(left, ct.transpose(right), total)
    added = ct.load(residual, (row, column), (TILE_M, TILE_N), padding_mode=ZERO).astype(ct.float32)
    ct.store(y, (row, column), (ct.maximum(total, 0.0) + added).astype(y.dtype))


def reference(x, weight, residual):
    return np.maximum(x @ weight.T, 0) + residual


def trusted(x, weight, residual):
    import torch

    return torch.relu(torch.nn.functional.linear(x, weight)) + residual


def launch(x, weight, residual, y, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(linear_residual, grid, (x, weight, residual, y, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="linear_residual",
    tensors={
        "x": tw.Tensor(("M", "K"), "bfloat16"),
        "weight": tw.Tensor(("N", "K"), "bfloat16", tw.normal(0.0, 0.02)),
        "residual": tw.Tensor(("M", "N"), "bfloat16"),
        "y": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,  # for others, tileiras 13.4 writes outside: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (64, 128), "TILE_N": (64, 128, 256), "TILE_K": (32, 64)},
        hints={"occupancy": (None, 2), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={
        "tall": {"M": 8192, "N": 2048, "K": 2048},
        "wide": {"M": 512, "N": 8192, "K": 4096},
        "long": {"M": 1024, "N": 1024, "K": 8192},
    },
)
