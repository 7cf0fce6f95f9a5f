"""Planted limit: too few blocks. Each of 24 blocks reduces a row of four million elements; the GPU has more SMs."""

import cuda.tile as ct

import tilewright as tw

PLANTED = "too few blocks"


@ct.kernel
def long_sums(x, total, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    sums = ct.zeros((1, TILE_N), ct.float32)
    for step in range(ct.cdiv(x.shape[1], TILE_N)):
        sums = sums + ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
    ct.store(total, (row,), ct.sum(sums, axis=1))


def reference(x):
    return x.sum(axis=1)


def launch(x, total, M):
    return tw.Launch(long_sums, (M,), (x, total, 4096))


task = tw.Task(
    name="planted_too_few_blocks",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "total": tw.Output(("M",), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"24x4194304": {"M": 24, "N": 1 << 22}},
)
