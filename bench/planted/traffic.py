"""Planted limit: traffic. A block reads its long row three times: for the mean, for the variance and for the result."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

PLANTED = "traffic"


@ct.kernel
def row_norm(x, y, TILE_N: ct.Constant[int]):
    row, chunks = ct.bid(0), ct.cdiv(x.shape[1], TILE_N)
    sums = ct.zeros((1, TILE_N), ct.float32)
    for step in range(chunks):
        sums = sums + ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO, allow_tma=False).astype(
            ct.float32
        )
    mean = ct.sum(sums) / x.shape[1]
    squares = ct.zeros((1, TILE_N), ct.float32)
    for step in range(chunks):
        inside = step * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :] < x.shape[1]
        centred = (
            ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO, allow_tma=False).astype(ct.float32)
            - mean
        )
        squares = squares + ct.where(inside, centred * centred, 0.0)
    scale = ct.rsqrt(ct.sum(squares) / x.shape[1] + 1e-5)
    for step in range(chunks):
        values = ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO, allow_tma=False).astype(
            ct.float32
        )
        ct.store(y, (row, step), ((values - mean) * scale).astype(y.dtype), allow_tma=False)


def reference(x):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)


def launch(x, y, M):
    return tw.Launch(row_norm, (M,), (x, y, 1024))


task = tw.Task(
    name="planted_traffic",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: 8 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"4096x65536": {"M": 4096, "N": 65536}},
)
