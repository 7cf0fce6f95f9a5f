"""Softmax over long rows in bf16: a block reads its row in chunks, once for maximum and sum, once for the result."""

import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def online_softmax(x, y, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    highest = ct.full((1, 1), -float("inf"), ct.float32)
    weight = ct.zeros((1, 1), ct.float32)
    for chunk in range(ct.cdiv(x.shape[1], TILE_N)):
        values = ct.load(x, (row, chunk), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        higher = ct.maximum(highest, ct.max(values, axis=1, keepdims=True))
        weight = weight * ct.exp(highest - higher) + ct.sum(ct.exp(values - higher), axis=1, keepdims=True)
        highest = higher
    for chunk in range(ct.cdiv(x.shape[1], TILE_N)):
        values = ct.load(x, (row, chunk), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        ct.store(y, (row, chunk), (ct.exp(values - highest) / weight).astype(y.dtype))


def reference(x):
    part = np.exp(x - x.max(axis=1, keepdims=True))
    return part / part.sum(axis=1, keepdims=True)


def trusted(x):
    import torch

    return torch.nn.functional.softmax(x, dim=1)


def launch(x, y, M, N, config):
    return tw.Launch(online_softmax, (M,), (x, y, config.TILE_N))


task = tw.Task(
    name="online_softmax",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    space=tw.Space(
        constants={"TILE_N": (512, 1024, 2048, 4096)},
        hints={"occupancy": (None, 4, 8), "num_worker_warps": (None, 8)},
        shipped={"TILE_N": 1024, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={"8192x8192": {"M": 8192, "N": 8192}, "1024x32768": {"M": 1024, "N": 32768}},
)
