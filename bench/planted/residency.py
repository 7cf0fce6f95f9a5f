"""Planted limit: residency. A block holds three rows in registers, so one block fills an SM, and nothing loads while it
computes and stores."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

PLANTED = "residency"


@ct.kernel
def normed_product(x, y, z, TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    row = ct.bid(0)
    left = ct.load(x, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    left = left * ct.rsqrt(ct.sum(left * left) / COLUMNS)
    right = ct.load(y, (row, 0), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    right = right * ct.rsqrt(ct.sum(right * right) / COLUMNS)
    both = left * right
    ct.store(z, (row, 0), (both - ct.sum(both) / COLUMNS).astype(z.dtype))


def reference(x, y):
    both = x / np.sqrt((x * x).mean(axis=1, keepdims=True)) * y / np.sqrt((y * y).mean(axis=1, keepdims=True))
    return both - both.mean(axis=1, keepdims=True)


def launch(x, y, z, M, N):
    return tw.Launch(normed_product, (M,), (x, y, z, 1 << (N - 1).bit_length(), N))


task = tw.Task(
    name="planted_residency",
    tensors={
        "x": tw.Tensor(("M", "N"), "bfloat16"),
        "y": tw.Tensor(("M", "N"), "bfloat16"),
        "z": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N: 8 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"8192x8192": {"M": 8192, "N": 8192}},
)
