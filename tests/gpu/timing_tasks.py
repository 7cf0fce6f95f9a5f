"""A kernel that works long for y = 2x, and one that leaves the work out if the output already holds the answer."""

import cuda.tile as ct

import tilewright as tw

TILE = 1024
ROUNDS = 2000


@ct.kernel
def works(x, y):
    tile = ct.load(x, (ct.bid(0),), (TILE,))
    total = tile * 2.0
    for _ in range(ROUNDS):
        total = total + tile * 0.0
    ct.store(y, (ct.bid(0),), total)


@ct.kernel
def already_there(x, y):
    tile = ct.load(x, (ct.bid(0),), (TILE,))
    there = ct.load(y, (ct.bid(0),), (TILE,)) == tile * 2.0
    if ct.min(ct.where(there, 1, 0), axis=0) == 0:
        total = tile * 2.0
        for _ in range(ROUNDS):
            total = total + tile * 0.0
        ct.store(y, (ct.bid(0),), total)


KERNELS = {"works": works, "already_there": already_there}

task = tw.Task(
    name="doubled_slowly",
    tensors={"x": tw.Tensor(("N",), "float32"), "y": tw.Output(("N",), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, N, config: tw.Launch(KERNELS[config.KERNEL], (-(-N // TILE),), (x, y)),
    flops=lambda N: N,
    independent=("N",),
    space=tw.Space(constants={"KERNEL": tuple(KERNELS)}, shipped={"KERNEL": "works"}),
    workloads={"even": {"N": 1024 * TILE}},
)
