"""Planted limit: the path of the loads. Rows have an odd length, so a load or a store takes one byte."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

PLANTED = "access path"


@ct.kernel
def rectified(x, y, TILE_N: ct.Constant[int]):
    row, columns = ct.bid(0), ct.arange(TILE_N, dtype=ct.int32)
    values = ct.gather(x, (row, columns))
    ct.scatter(y, (row, columns), ct.maximum(values, 0))


def reference(x):
    return np.maximum(x, 0)


def launch(x, y, M, N):
    return tw.Launch(rectified, (M,), (x, y, 1 << (N - 1).bit_length()))


task = tw.Task(
    name="planted_access_path",
    tensors={"x": tw.Tensor(("M", "N"), "int8"), "y": tw.Output(("M", "N"), "int8")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"16384x8191": {"M": 16384, "N": 8191}},
)
