"""Planted limit: a chain of dependent loads. Each element follows a list of successors: a load's address is the
value of the load before it."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

PLANTED = "dependent loads"
STEPS = 32


@ct.kernel
def follow(successor, start, end, TILE: ct.Constant[int]):
    block = ct.bid(0)
    at = ct.load(start, (block,), (TILE,))
    for _ in range(STEPS):
        at = ct.gather(successor, at)
    ct.store(end, (block,), at)


def reference(successor, start):
    at = start.astype(np.int64)
    for _ in range(STEPS):
        at = successor[at].astype(np.int64)
    return at


def launch(successor, start, end, M):
    return tw.Launch(follow, (-(-M // 128),), (successor, start, end, 128))


task = tw.Task(
    name="planted_dependent_loads",
    tensors={
        "successor": tw.Tensor(("N",), "int32", tw.integers(0, "N")),
        "start": tw.Tensor(("M",), "int32", tw.integers(0, "N")),
        "end": tw.Output(("M",), "int32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N: 0,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"65536 of 2^24": {"M": 65536, "N": 1 << 24}},
)
