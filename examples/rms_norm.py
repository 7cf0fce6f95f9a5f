"""y = x / sqrt(mean(x²) + ε) · weight over rows, in bf16.

A persistent kernel: a few blocks per SM. Each block loops over groups of TILE_M rows.
"""

import cuda.tile as ct
import numpy as np

import tilewright as tw

EPSILON = 1e-6


@ct.kernel
def rms_norm(x, weight, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    scale = ct.load(weight, (0,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    for group in range(ct.bid(0), ct.cdiv(x.shape[0], TILE_M), ct.num_blocks(0)):
        rows = ct.load(x, (group, 0), (TILE_M, TILE_N), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        mean_square = ct.sum(rows * rows, axis=1, keepdims=True) / COLUMNS
        normed = rows * ct.rsqrt(mean_square + EPSILON) * scale
        ct.store(y, (group, 0), normed.astype(y.dtype))


def reference(x, weight):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * weight


def trusted(x, weight):
    import torch

    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, EPSILON)


def launch(x, weight, y, M, N, config, hardware):
    blocks = min(-(-M // config.TILE_M), hardware.sms * config.BLOCKS_PER_SM)
    width = 1 << (N - 1).bit_length()
    return tw.Launch(rms_norm, (blocks,), (x, weight, y, config.TILE_M, width, N))


task = tw.Task(
    name="rms_norm",
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"),
        "weight": tw.Tensor(("N",), "bfloat16", tw.uniform(0.5, 1.5)),
        "y": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 4 * M * N,
    independent=("M",),
    space=tw.Space(
        constants={"TILE_M": (1, 2, 4, 8), "BLOCKS_PER_SM": (1, 2, 4, 8)},
        hints={"occupancy": (None, 2, 4), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 2, "BLOCKS_PER_SM": 2, "occupancy": None, "num_worker_warps": None},
        where=(
            lambda TILE_M, N: TILE_M * N <= 16384,
            lambda occupancy, BLOCKS_PER_SM: occupancy is None or occupancy == BLOCKS_PER_SM,
        ),
    ),
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "4096x8192": {"M": 4096, "N": 8192},
        "2048x4096": {"M": 2048, "N": 4096},
        "32768x1024": {"M": 32768, "N": 1024},
        "odd": {"M": 1000, "N": 3000},
    },
)
