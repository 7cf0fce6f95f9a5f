"""Task files for the tests of entries that change the configuration, in the forms in which people write it."""

from __future__ import annotations

MATMUL = """\
import cuda.tile as ct

import tilewright as tw


@ct.kernel
def product(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], TILE_K)):
        left = ct.load(a, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, column), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(c, (row, column), total.astype(c.dtype))


def launch(a, b, c, M, N, config):
    grid = (-(-M // config.TILE_M), -(-N // config.TILE_N))
    return tw.Launch(product, grid, (a, b, c, config.TILE_M, config.TILE_N, config.TILE_K))


task = tw.Task(
    name="product",
    tensors={
        "a": tw.Tensor(("M", "K"), "bfloat16"),
        "b": tw.Tensor(("K", "N"), "bfloat16"),
        "c": tw.Output(("M", "N"), "bfloat16"),
    },
    reference=lambda a, b: a @ b,
    launch=launch,
    flops=lambda M, N, K: 2 * M * N * K,
    independent=("M", "N"),
    serves=lambda M, N: min(M, N) > 1 or M * N % 8 == 0,
    space=tw.Space(
        constants={"TILE_M": (64,), "TILE_N": (64,), "TILE_K": (32,)},  # as in the tutorial
        shipped={"TILE_M": 64, "TILE_N": 64, "TILE_K": 32},
    ),
    workloads={"square": {"M": 512, "N": 512, "K": 512}},
)
"""

SCALE = """\
import cuda.tile as ct
import tilewright as tw


@ct.kernel
def scale(x, y, TILE: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), 0), (1, TILE))  # a row
    ct.store(y, (ct.bid(0), 0), t * 2)


task = tw.Task(
    name="scale",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, M, N: tw.Launch(scale, (M,), (x, y, N)),
    flops=lambda M, N: M * N,
    independent=("M",),
    serves=lambda N: N & (N - 1) == 0,
    space=tw.Space(shipped={}),
    workloads={"rows": {"M": 4096, "N": 1024}},
)
"""
"""Nothing to choose but hints; the tile is a whole row."""

LISTED = """\
from types import SimpleNamespace

import cuda.tile as ct


def configurations(capability):
    if capability < 90:
        yield SimpleNamespace(TILE_M=64, TILE_N=64, num_ctas=1, occupancy=2)
    else:
        # the first one is taken
        yield SimpleNamespace(TILE_M=128, TILE_N=64, num_ctas=1, occupancy=1)
        yield SimpleNamespace(TILE_M=128, TILE_N=64, num_ctas=2, occupancy=1)


@ct.kernel
def fixed(x, y, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):
    t = ct.load(x, (ct.bid(0), ct.bid(1)), (TILE_M, TILE_N))
    ct.store(y, (ct.bid(0), ct.bid(1)), t * 2)


def tuned():
    return fixed.replace_hints(occupancy=2)
"""
"""A library's module: its configurations in a generator, one hint fixed at the launch, the rest in the decorator."""

LISTED_TASK = """
import tilewright as tw

first = next(configurations(90))
own = tw.decorated_hints(tuned())
task = tw.Task(
    name="listed",
    tensors={"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")},
    reference=lambda x: 2 * x,
    launch=lambda x, y, M, N, config: tw.Launch(
        tuned(), (-(-M // config.TILE_M), -(-N // config.TILE_N)), (x, y, config.TILE_M, config.TILE_N)
    ),
    flops=lambda M, N: M * N,
    independent=("M", "N"),
    space=tw.Space(
        constants={"TILE_M": (64, 128), "TILE_N": (64, 128)},
        hints={name: (own[name],) for name in ("num_ctas", "occupancy", "num_worker_warps")},
        shipped={
            "TILE_M": first.TILE_M, "TILE_N": first.TILE_N,
            **{name: own[name] for name in ("num_ctas", "occupancy", "num_worker_warps")},
        },
    ),
    workloads={"even": {"M": 1024, "N": 1024}},
)
"""
"""What such a task makes of it; it stands in a file of its own that is not edited."""
