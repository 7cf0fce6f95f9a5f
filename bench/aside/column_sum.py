"""The sums of a matrix's columns in bf16, as the gradient of a bias: a block adds up TILE_N columns."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def column_sum(x, total, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    column = ct.bid(0)
    sums = ct.zeros((TILE_M, TILE_N), ct.float32)
    for step in range(ct.cdiv(x.shape[0], TILE_M)):
        part = ct.load(x, (step, column), (TILE_M, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        sums = sums + part.astype(ct.float32)
    ct.store(total, (column,), ct.sum(sums, axis=0).astype(total.dtype))


def reference(x):
    return x.sum(axis=0)


def trusted(x):
    import torch

    return x.sum(dim=0, dtype=torch.float32)


def launch(x, total, M, N, config):
    return tw.Launch(column_sum, (-(-N // config.TILE_N),), (x, total, config.TILE_M, config.TILE_N))


task = tw.Task(
    name="column_sum",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "total": tw.Output(("N",), "float32")},
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: M * N,
    independent=("N",),
    space=tw.Space(
        constants={"TILE_M": (16, 64, 128), "TILE_N": (32, 64, 128)},
        hints={"num_worker_warps": (None, 8)},
        shipped={"TILE_M": 64, "TILE_N": 64, "num_worker_warps": None},
    ),
    workloads={"4096x8192": {"M": 4096, "N": 8192}, "2048x32768": {"M": 2048, "N": 32768}},
)
