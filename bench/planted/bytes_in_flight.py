"""Planted limit: bytes in flight. One block an SM waits for one small tile before it asks for the next."""

import cuda.tile as ct

import tilewright as tw

PLANTED = "bytes in flight"


@ct.kernel
def row_maxima(x, high, TILE_N: ct.Constant[int]):
    row = ct.bid(0)
    best = ct.full((1, TILE_N), -1e30, ct.float32)
    for step in range(ct.cdiv(x.shape[1], TILE_N)):
        part = ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.NEG_INF, latency=1, allow_tma=False)
        best = ct.maximum(best, part)
    ct.store(high, (row,), ct.max(best, axis=1))


def reference(x):
    return x.max(axis=1)


def launch(x, high, M):
    return tw.Launch(row_maxima, (M,), (x, high, 512))


task = tw.Task(
    name="planted_bytes_in_flight",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "high": tw.Output(("M",), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"132x1048576": {"M": 132, "N": 1 << 20}},
)
