"""Softmax over the rows of a matrix in bf16, a plain kernel: one block per row, with the whole row in one tile."""

import cuda.tile as ct
import numpy as np

import tilewright as tw


@ct.kernel
def softmax(x, y, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    values = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
    part = ct.exp(values - ct.max(values))
    ct.store(y, (row, 0), (part / ct.sum(part)).astype(y.dtype))


def reference(x):
    part = np.exp(x - x.max(axis=1, keepdims=True))
    return part / part.sum(axis=1, keepdims=True)


def trusted(x):
    import torch

    return torch.nn.functional.softmax(x, dim=1)


def launch(x, y, M, N):
    width = 1 << (N - 1).bit_length()
    return tw.Launch(softmax, (M,), (x, y, width))


task = tw.Task(
    name="naive_softmax",
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"),
        "y": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 5 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={
        "16384x4096": {"M": 16384, "N": 4096},
        "65536x1024": {"M": 65536, "N": 1024},
    },
)
