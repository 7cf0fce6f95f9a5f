"""G = Xᵀ · Y in fp16 with a float32 result, as the gradient of a weight: both operands have K as their first axis."""

import cuda.tile as ct

import tilewright as tw


@ct.kernel
def weight_gradient(x, y, g, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(x.shape[0], TILE_K)):
        left = ct.load(x, (k, row), (TILE_K, TILE_M), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(y, (k, column), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(ct.transpose(left), right, total)
    ct.store(g, (row, column), total)


def reference(x, y):
    return x.T @ y


def trusted(x, y):
    return x.T.float() @ y.float()


def launch(x, y, g, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(weight_gradient, grid, (x, y, g, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="weight_gradient",
    tensors={
        "x": tw.Tensor(("K", "M"), "float16"),
        "y": tw.Tensor(("K", "N"), "float16"),
        "g": tw.Output(("M", "N"), "float32"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,  # for others, tileiras 13.4 writes outside: docs/tile-ir.md
    space=tw.Space(
        constants={"TILE_M": (64, 128), "TILE_N": (64, 128, 256), "TILE_K": (32, 64)},
        hints={"occupancy": (None, 2), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 128, "TILE_N": 128, "TILE_K": 64, "occupancy": None, "num_worker_warps": None},
        where=(lambda occupancy, num_worker_warps: occupancy is None or num_worker_warps is None,),
    ),
    workloads={"square": {"M": 2048, "N": 2048, "K": 8192}, "wide": {"M": 1024, "N": 4096, "K": 4096}},
)
