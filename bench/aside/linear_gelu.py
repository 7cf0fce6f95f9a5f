"""y = gelu(x · weightᵀ + bias) in bf16, the weight as torch stores it, by the tanh approximation of GELU."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

SQRT_2_OVER_PI = 0.7978845608028654


@ct.kernel
def linear_gelu(x, weight, bias, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    ZERO = ct.PaddingMode.ZERO
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(x.shape[1], TILE_K)):
        left = ct.load(x, (row, k), (TILE_M, TILE_K), padding_mode=ZERO)
        right = ct.load(weight, (column, k), (TILE_N, TILE_K), padding_mode=ZERO)
        total = ct.mma(left, ct.transpose(right), total)
    z = total + ct.load(bias, (column,), (TILE_N,), padding_mode=ZERO).astype(ct.float32)
    inner = SQRT_2_OVER_PI * (z + 0.044715 * z * z * z)
    ct.store(y, (row, column), (0.5 * z * (1.0 + ct.tanh(inner))).astype(y.dtype))


def reference(x, weight, bias):
    z = x @ weight.T + bias
    return 0.5 * z * (1 + np.tanh(SQRT_2_OVER_PI * (z + 0.044715 * z**3)))


def trusted(x, weight, bias):
    import torch

    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias), approximate="tanh")


def launch(x, weight, bias, y, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(linear_gelu, grid, (x, weight, bias, y, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="linear_gelu",
    tensors={
        "x": tw.Tensor(("M", "K"), "bfloat16"),
        "weight": tw.Tensor(("N", "K"), "bfloat16", tw.normal(0.0, 0.02)),
        "bias": tw.Tensor(("N",), "bfloat16"),
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
        shipped={"TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={"mlp": {"M": 2048, "N": 8192, "K": 2048}, "few_rows": {"M": 512, "N": 4096, "K": 4096}},
)
