"""z = x + residual and y = z / √(mean z² + ε) · weight of each row, in bf16: a block has whole rows in one tile."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

EPS = 1e-6


@ct.kernel
def residual_rms_norm(
    x, residual, weight, z, y, N: ct.Constant[int], TILE_M: ct.Constant[int], WIDTH: ct.Constant[int]
):
    row = ct.bid(0)
    ZERO = ct.PaddingMode.ZERO
    given = ct.load(x, (row, 0), (TILE_M, WIDTH), padding_mode=ZERO).astype(ct.float32)
    added = given + ct.load(residual, (row, 0), (TILE_M, WIDTH), padding_mode=ZERO).astype(ct.float32)
    ct.store(z, (row, 0), added.astype(z.dtype))
    scale = ct.rsqrt(ct.sum(added * added, axis=1, keepdims=True) / N + EPS)
    factor = ct.load(weight, (0,), (WIDTH,), padding_mode=ZERO).astype(ct.float32)
    ct.store(y, (row, 0), (added * scale * factor).astype(y.dtype))


def reference(x, residual, weight):
    z = x + residual
    return z, z / np.sqrt((z * z).mean(axis=1, keepdims=True) + EPS) * weight


def trusted(x, residual, weight):
    import torch

    z = x.float() + residual.float()
    return z.to(x.dtype), torch.nn.functional.rms_norm(z, weight.shape, weight.float(), EPS).to(x.dtype)


def launch(x, residual, weight, z, y, M, N, config):
    width = 1 << (N - 1).bit_length()
    grid = (-(-M // config.TILE_M),)
    return tw.Launch(residual_rms_norm, grid, (x, residual, weight, z, y, N, config.TILE_M, width))


task = tw.Task(
    name="residual_rms_norm",
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"),
        "residual": tw.Tensor(("M", "N"), "bfloat16"),
        "weight": tw.Tensor(("N",), "bfloat16"),
        "z": tw.Output(("M", "N"), "bfloat16"),
        "y": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 6 * M * N,
    independent=("M",),
    space=tw.Space(
        constants={"TILE_M": (1, 2, 4, 8)},
        hints={"occupancy": (None, 2, 4), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 1, "occupancy": None, "num_worker_warps": None},
    ),
    workloads={
        "16384x1024": {"M": 16384, "N": 1024},
        "8192x4096": {"M": 8192, "N": 4096},
        "2048x2048": {"M": 2048, "N": 2048},
    },
)
