"""Planted limit: conversions per byte. Each element of two bytes is rounded to an integer and back twelve times."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

PLANTED = "conversions and special functions"
STEPS = 12


@ct.kernel
def staircase(x, y, TILE: ct.Constant[int]):
    block = ct.bid(0)
    value = ct.load(x, (block,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    for _ in ct.static_iter(range(STEPS)):
        value = (value.astype(ct.int32) + 3).astype(ct.float32)
    ct.store(y, (block,), value.astype(y.dtype))


def reference(x):
    for _ in range(STEPS):
        x = np.trunc(x) + 3
    return x


def launch(x, y, N):
    return tw.Launch(staircase, (-(-N // 2048),), (x, y, 2048))


task = tw.Task(
    name="planted_conversions",
    tensors={"x": tw.Tensor(("N",), "bfloat16", tw.integers(0, 9)), "y": tw.Output(("N",), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda N: 12 * N,
    independent=("N",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"2^26": {"N": 1 << 26}},
)
