"""Planted limit: issue slots. Each element of two bytes takes 128 multiplications and additions."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

PLANTED = "issue slots"


@ct.kernel
def polynomial(x, y, TILE: ct.Constant[int]):
    block = ct.bid(0)
    value = ct.load(x, (block,), (TILE,)).astype(ct.float32)
    total = ct.full((TILE,), 1.0, ct.float32)
    for degree in ct.static_iter(range(128)):
        total = total * value + (degree % 7 - 3) * 0.25
    ct.store(y, (block,), total.astype(y.dtype))


def reference(x):
    total = np.ones_like(x)
    for degree in range(128):
        total = total * x + (degree % 7 - 3) * 0.25
    return total


def launch(x, y, N):
    return tw.Launch(polynomial, (-(-N // 1024),), (x, y, 1024))


task = tw.Task(
    name="planted_issue_slots",
    tensors={"x": tw.Tensor(("N",), "bfloat16", tw.uniform(-0.9, 0.9)), "y": tw.Output(("N",), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda N: 256 * N,
    independent=("N",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"2^26": {"N": 1 << 26}},
)
