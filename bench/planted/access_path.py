"""Planted limit: the path of the loads. Rows have an odd length, so a load or a store takes two bytes."""

import cuda.tile as ct

import tilewright as tw

PLANTED = "access path"


@ct.kernel
def doubled(x, y, TILE_N: ct.Constant[int]):
    row, columns = ct.bid(0), ct.arange(TILE_N, dtype=ct.int32)
    values = ct.gather(x, (row, columns)).astype(ct.float32)
    ct.scatter(y, (row, columns), (values * 2.0).astype(y.dtype))


def reference(x):
    return 2.0 * x


def launch(x, y, M, N):
    return tw.Launch(doubled, (M,), (x, y, 1 << (N - 1).bit_length()))


task = tw.Task(
    name="planted_access_path",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"16384x4095": {"M": 16384, "N": 4095}},
)
