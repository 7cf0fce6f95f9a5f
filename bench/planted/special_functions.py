"""Planted limit: special functions per byte. Each element of two bytes takes twelve of them."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

PLANTED = "conversions and special functions"
STEPS = 6


@ct.kernel
def squash(x, y, TILE: ct.Constant[int]):
    block = ct.bid(0)
    value = ct.load(x, (block,), (TILE,)).astype(ct.float32)
    for _ in ct.static_iter(range(STEPS)):
        value = ct.rsqrt(1.0 + ct.exp2(value, flush_to_zero=True), flush_to_zero=True)
    ct.store(y, (block,), value.astype(y.dtype))


def reference(x):
    for _ in range(STEPS):
        x = 1 / np.sqrt(1.0 + np.exp2(x))
    return x


def launch(x, y, N):
    return tw.Launch(squash, (-(-N // 2048),), (x, y, 2048))


task = tw.Task(
    name="planted_special_functions",
    tensors={"x": tw.Tensor(("N",), "bfloat16"), "y": tw.Output(("N",), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda N: 18 * N,
    independent=("N",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"2^26": {"N": 1 << 26}},
)
