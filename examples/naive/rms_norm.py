"""y = x / sqrt(mean(x²) + ε) · weight in bf16, a plain kernel: a block gathers its row twice."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

EPSILON = 1e-6


@ct.kernel
def rms_norm(x, weight, y, TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    row = ct.bid(0)
    squares = ct.zeros((TILE_N,), ct.float32)
    for n in range(ct.cdiv(COLUMNS, TILE_N)):
        columns = n * TILE_N + ct.arange(TILE_N, dtype=ct.int32)
        values = ct.gather(x, (row, columns)).astype(ct.float32)
        squares += values * values
    inverse = ct.rsqrt(ct.sum(squares) / COLUMNS + EPSILON)
    for n in range(ct.cdiv(COLUMNS, TILE_N)):
        columns = n * TILE_N + ct.arange(TILE_N, dtype=ct.int32)
        values = ct.gather(x, (row, columns)).astype(ct.float32)
        scale = ct.gather(weight, columns).astype(ct.float32)
        ct.scatter(y, (row, columns), (values * inverse * scale).astype(y.dtype))


def reference(x, weight):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON) * weight


def trusted(x, weight):
    import torch

    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, EPSILON)


def launch(x, weight, y, M, N, config):
    return tw.Launch(rms_norm, (M,), (x, weight, y, config.TILE_N, N))


task = tw.Task(
    name="naive_rms_norm",
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
        constants={"TILE_N": (1024,)},
        shipped={"TILE_N": 1024},
    ),
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "4096x8192": {"M": 4096, "N": 8192},
    },
)
