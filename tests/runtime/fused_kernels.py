"""Pairs of kernels of which the first only prepares the input of the second, and pairs that only look so."""

from __future__ import annotations

import cuda.tile as ct

SCALE = 0.125


@ct.kernel
def add(x, y, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row = ct.bid(0)
    left = ct.load(x, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    right = ct.load(y, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (row, 0), (left + right).astype(out.dtype))


@ct.kernel
def softmax(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row = ct.bid(0)
    values = ct.load(x, (row, 0), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
    powers = ct.exp(values - ct.max(values, 1, keepdims=True))
    ct.store(out, (row, 0), (powers / ct.sum(powers, 1, keepdims=True)).astype(out.dtype))


def silu(x):  # type: ignore[no-untyped-def]
    wide = x.astype(ct.float32)
    return wide / (1.0 + ct.exp(-wide))


@ct.kernel
def silu_mul(gate, up, out, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int]):  # type: ignore[no-untyped-def]
    i, j = ct.bid(0), ct.bid(1)
    value = silu(ct.load(gate, index=(i, j), shape=(TILE_M, TILE_N)))
    value *= ct.load(up, index=(i, j), shape=(TILE_M, TILE_N)).astype(ct.float32)
    ct.store(out, index=(i, j), tile=ct.astype(value, out.dtype))


@ct.kernel
def rms_norm(x, weight, out, eps: float, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, columns = ct.bid(0), x.shape[1]
    squares = ct.zeros((1, TILE), ct.float32)
    for j in range(ct.num_tiles(x, axis=1, shape=(1, TILE))):
        part = ct.load(x, (row, j), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        squares = squares + part * part
    inverse = ct.rsqrt(ct.sum(squares, 1, keepdims=True) / columns + eps)
    for j in range(ct.num_tiles(x, axis=1, shape=(1, TILE))):
        part = ct.load(x, (row, j), (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        factor = ct.load(weight, (j,), (TILE,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
        ct.store(out, (row, j), (part * inverse * factor).astype(out.dtype))


@ct.kernel
def scaled(x, bias, out, factor: float, TM: ct.Constant[int], TN: ct.Constant[int]):  # type: ignore[no-untyped-def]
    i, j = ct.bid(1), ct.bid(0)
    total = ct.load(x, (i, j), (TM, TN)) * factor * SCALE
    ct.store(out, (i, j), (total + ct.load(bias, (0, j), (1, TN))).astype(out.dtype))


@ct.kernel
def matmul(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], TILE_K)):
        left = ct.load(a, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, column), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right.astype(a.dtype), total)
    ct.store(c, (row, column), total.astype(c.dtype))


@ct.kernel
def dropped(x, noise, out, keep: float, TM: ct.Constant[int], TN: ct.Constant[int]):  # type: ignore[no-untyped-def]
    i, j = ct.bid(0), ct.bid(1)
    values, drawn = ct.load(x, (i, j), (TM, TN)), ct.load(noise, (i, j), (TM, TN))
    inverse = 1.0 / keep
    ct.store(out, (i, j), ct.where(drawn < keep, values * inverse, 0.0))


@ct.kernel
def row_sum(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row = ct.bid(0)
    total = ct.zeros((1, TILE), ct.float32)
    for j in range(ct.num_tiles(x, axis=1, shape=(1, TILE))):
        place = (row, j)
        total = total + ct.load(x, place, (1, TILE), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(out, (row,), ct.sum(total, 1))


# Wrong pairs --------------------------------------------------------------------------------------------


@ct.kernel
def difference(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Reads the tile of a neighbour, too."""
    row = ct.bid(0)
    ct.store(out, (row, 0), ct.load(x, (row, 0), (1, TILE)) - ct.load(x, (row + 1, 0), (1, TILE)))


@ct.kernel
def centred(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row = ct.load(x, (ct.bid(0), 0), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (ct.bid(0), 0), row - ct.sum(row, axis=1, keepdims=True))


@ct.kernel
def numbered(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Its values depend on the number of the block."""
    row = ct.bid(0)
    factor = ct.bid(0) * 2
    ct.store(out, (row, 0), ct.load(x, (row, 0), (1, TILE)) * factor)


@ct.kernel
def swapped(x, y, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    left, right = ct.load(x, (ct.bid(0), 0), (1, TILE)), ct.load(y, (ct.bid(0), 0), (1, TILE))
    left, right = right, left
    ct.store(out, (ct.bid(0), 0), left - right)


@ct.kernel
def diagonal(x, out, TM: ct.Constant[int], TN: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Fills only the tiles of a diagonal."""
    place = (ct.bid(0), ct.bid(0))
    ct.store(out, place, ct.load(x, place, (TM, TN)))


@ct.kernel
def by_gather(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    places = ct.arange(TILE, dtype=ct.int32)[None, :]
    ct.store(out, (ct.bid(0), 0), ct.gather(x, (ct.bid(0), places)))


@ct.kernel
def in_a_loop(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Copies all tiles of a row."""
    for j in range(ct.num_tiles(x, axis=1, shape=(1, TILE))):
        ct.store(out, (ct.bid(0), j), ct.load(x, (ct.bid(0), j), (1, TILE)))


def seeded(x):  # type: ignore[no-untyped-def]
    return x * ct.bid(0)


@ct.kernel
def by_helper(x, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    ct.store(out, (ct.bid(0), 0), seeded(ct.load(x, (ct.bid(0), 0), (1, TILE))))


@ct.kernel
def by_other_output(a, c, TM: ct.Constant[int], TN: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Counts the tiles of what it writes. The next kernel has an output of this name, too."""
    count = ct.num_tiles(c, 1, (TM, TN))
    ct.store(c, (ct.bid(0), ct.bid(1)), ct.load(a, (ct.bid(0), ct.bid(1)), (TM, TN)) * count)


@ct.kernel
def renamed(x, y, out, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    left = ct.load(x, (ct.bid(0), 0), (1, TILE))
    x = y
    ct.store(out, (ct.bid(0), 0), left + ct.load(x, (ct.bid(0), 0), (1, TILE)))


@ct.kernel
def exponential(x, out, TM: ct.Constant[int], TN: ct.Constant[int]):  # type: ignore[no-untyped-def]
    i, j = ct.bid(0), ct.bid(1)
    ct.store(out, (i, j), ct.exp(ct.load(x, (i, j), (TM, TN))))


@ct.kernel
def column_sums(x, out, ROWS: ct.Constant[int], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Loads rows after the last one, too, where the padding counts."""
    i, j = ct.bid(0), ct.bid(1)
    total = ct.zeros((1, TILE), ct.float32)
    for row in range(ROWS):
        total = total + ct.load(x, (i * ROWS + row, j), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (i, j), total)
