"""Planted limit: the last wave. Long blocks fill the GPU once and a little more, so most SMs wait for a few blocks."""

import cuda.tile as ct

import tilewright as tw

PLANTED = "last wave"


@ct.kernel(occupancy=2)
def row_sums(x, total, ROWS: ct.Constant[int], TILE_N: ct.Constant[int]):
    sums = ct.zeros((ROWS, TILE_N), ct.float32)
    for step in range(ct.cdiv(x.shape[1], TILE_N)):
        sums = sums + ct.load(x, (ct.bid(0), step), (ROWS, TILE_N), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(total, (ct.bid(0),), ct.sum(sums, axis=1))


def reference(x):
    return x.sum(axis=1)


def launch(x, total, M, N):
    return tw.Launch(row_sums, (-(-M // 16),), (x, total, 16, 1024))


task = tw.Task(
    name="planted_last_wave",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "total": tw.Output(("M",), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"4480x65536": {"M": 4480, "N": 65536}},
)
