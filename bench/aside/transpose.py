"""Y = Xᵀ in bf16: a block loads a tile and stores it with its axes exchanged."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def transpose(x, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    row, column = ct.bid(1), ct.bid(0)
    tile = ct.load(x, (row, column), (TILE_M, TILE_N), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (column, row), ct.transpose(tile))


def reference(x):
    return x.T


def trusted(x):
    return x.T.contiguous()


def launch(x, y, M, N, config):
    grid = (-(-N // config.TILE_N), -(-M // config.TILE_M))
    return tw.Launch(transpose, grid, (x, y, config.TILE_M, config.TILE_N))


task = tw.Task(
    name="transpose",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("N", "M"), "bfloat16")},
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N: 0,
    independent=("M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,  # for others, tileiras 13.4 writes outside: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (32, 64, 128), "TILE_N": (32, 64, 128)},
        hints={"occupancy": (None, 4), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 64, "TILE_N": 64, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={"8192x8192": {"M": 8192, "N": 8192}, "2048x4096": {"M": 2048, "N": 4096}},
)
