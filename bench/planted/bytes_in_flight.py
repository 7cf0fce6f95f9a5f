"""Planted limit: bytes in flight. Four blocks an SM each wait for one small tile before they ask for the next."""

import cuda.tile as ct

import tilewright as tw

PLANTED = "bytes in flight"


@ct.kernel
def row_maxima(x, high, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    best = ct.full((TILE_N,), -1e30, ct.float32)
    for step in range(ct.cdiv(x.shape[1], TILE_N)):
        best = ct.maximum(
            best, ct.gather(x, (row, step * TILE_N + ct.arange(TILE_N, dtype=ct.int32)), padding_value=-1e30)
        )
    ct.store(high, (row,), ct.max(best, axis=0, keepdims=True))


def reference(x):
    return x.max(axis=1)


def launch(x, high, M):
    return tw.Launch(row_maxima, (M,), (x, high, 128))


task = tw.Task(
    name="planted_bytes_in_flight",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "high": tw.Output(("M",), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"528x262144": {"M": 528, "N": 262144}},
)
