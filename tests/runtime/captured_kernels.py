"""Kernels that the tests of capture launch. They stand in a file, as every kernel must."""

from __future__ import annotations

import cuda.tile as ct

FACTOR = 2.0


@ct.kernel
def scale(x, y, TILE: ct.Constant[int], factor: float):  # type: ignore[no-untyped-def]
    ct.store(y, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * factor * FACTOR)


@ct.kernel
def gathered(x, table, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    places = ct.load(table, (ct.bid(0),), (TILE,))
    ct.store(y, (ct.bid(0),), ct.gather(x, places))


@ct.kernel
def centred(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row = ct.load(x, (ct.bid(0), 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (ct.bid(0), 0), row - ct.sum(row, axis=1, keepdims=True))


@ct.kernel
def doubled(x, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(x, (ct.bid(0),), ct.load(x, (ct.bid(0),), (TILE,)) * 2)


@ct.kernel
def matmul(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], TILE_K)):
        left = ct.load(a, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, column), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(c, (row, column), total.astype(c.dtype))


def nested():  # type: ignore[no-untyped-def]
    @ct.kernel
    def inside(x, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
        ct.store(x, (ct.bid(0),), ct.full((TILE,), 1.0, ct.float32))

    return inside
