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
def rotated(x, cosine, sine, TILE: ct.Constant[int], HALF: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Rotary embedding of the rows of ``x``, in place."""
    row = ct.bid(0)
    cos, sin = ct.load(cosine, (row, 0), (TILE, HALF)), ct.load(sine, (row, 0), (TILE, HALF))
    first, second = ct.load(x, (row, 0), (TILE, HALF)), ct.load(x, (row, 1), (TILE, HALF))
    ct.store(x, (row, 0), first * cos - second * sin)
    ct.store(x, (row, 1), second * cos + first * sin)


@ct.kernel
def by_sequence(x, offsets, y, TILE: ct.Constant[int], COLUMNS: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Sequences of unlike length, one after another: each row less the first of its sequence."""
    sequence, tile = ct.bid(0), ct.bid(1)
    first = ct.load(offsets, (sequence,), (1,)).item()
    last = ct.load(offsets, (sequence + 1,), (1,)).item()
    rows = (first + tile * TILE + ct.arange(TILE, dtype=ct.int32))[:, None]
    columns = ct.arange(COLUMNS, dtype=ct.int32)[None, :]
    inside = rows < last
    values = ct.gather(x, (rows, columns), mask=inside, padding_value=0.0)
    ct.scatter(y, (rows, columns), values - ct.gather(x, (first, columns)), mask=inside)


@ct.kernel
def between_two(x, first, last, y, TILE: ct.Constant[int], COLUMNS: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """As `by_sequence`, with a table of beginnings and one of ends."""
    sequence, tile = ct.bid(0), ct.bid(1)
    begin = ct.load(first, (sequence,), (1,)).item()
    end = ct.load(last, (sequence + 1,), (1,)).item()
    rows = (begin + tile * TILE + ct.arange(TILE, dtype=ct.int32))[:, None]
    columns = ct.arange(COLUMNS, dtype=ct.int32)[None, :]
    values = ct.gather(x, (rows, columns), mask=rows < end, padding_value=0.0)
    ct.scatter(y, (rows, columns), values * 2, mask=rows < end)


@ct.kernel
def added(x, total, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Adds the rows of ``x`` to one row, each block its own, in any order."""
    ct.atomic_add(total, ct.arange(TILE, dtype=ct.int32), ct.load(x, (ct.bid(0), 0), (1, TILE)).reshape((TILE,)))


@ct.kernel
def matmul(a, b, c, TILE_M: ct.Constant[int], TILE_N: ct.Constant[int], TILE_K: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((TILE_M, TILE_N), ct.float32)
    for k in range(ct.cdiv(a.shape[1], TILE_K)):
        left = ct.load(a, (row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, (k, column), (TILE_K, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(c, (row, column), total.astype(c.dtype))


@ct.kernel
def grouped(xs, ys, TILE: ct.Constant[int], PROGRAMS: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Each block walks over the tiles of all arrays, as a grouped product does."""
    first = 0
    for group in range(len(xs)):
        x, y = xs[group], ys[group]
        tiles = ct.num_tiles(x, 0, (TILE,))
        for tile in range(ct.bid(0), first + tiles, PROGRAMS):
            if tile >= first:
                part = ct.load(x, (tile - first,), (TILE,), padding_mode=ct.PaddingMode.ZERO)
                ct.store(y, (tile - first,), part * 3.0)
        first += tiles


@ct.kernel
def appended(new, places, cache, COLUMNS: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Writes one row of each sequence into a cache, at the place of its next token."""
    sequence = ct.bid(0)
    place = ct.load(places, (sequence,), (1,)).item()
    row = ct.load(new, (sequence, 0), (1, COLUMNS)).reshape((1, 1, COLUMNS))
    ct.store(cache, (sequence, place, 0), row)


FAR = 1 << 23


@ct.kernel
def far(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Reads elements that are `FAR` apart, without looking at the extents: no shorter array will do."""
    places = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    both = ct.gather(x, places, check_bounds=False) + ct.gather(x, places + FAR, check_bounds=False)
    ct.scatter(y, places, both, check_bounds=False)


@ct.kernel
def summed(xs, weights: tuple[float, ...], y, tiles: ct.Constant[tuple[int, int]]):  # type: ignore[no-untyped-def]
    """The weighted sum of the arrays of a tuple, in tiles of two axes."""
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros(tiles, ct.float32)
    for index in ct.static_iter(range(len(xs))):
        total = total + ct.load(xs[index], (row, column), tiles).astype(ct.float32) * weights[index]
    ct.store(y, (row, column), total)


def times(factor):  # type: ignore[no-untyped-def]
    """A kernel for one factor, as factories make them."""
    import cuda.tile as own

    @own.kernel
    def inner(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
        own.store(y, (own.bid(0),), own.load(x, (own.bid(0),), (TILE,)) * factor * FACTOR)

    return inner


def nested():  # type: ignore[no-untyped-def]
    operation = ct.exp

    @ct.kernel
    def inside(x, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
        ct.store(x, (ct.bid(0),), operation(ct.full((TILE,), 1.0, ct.float32)))

    return inside


@ct.kernel
def group_centred(  # type: ignore[no-untyped-def]
    x, y, means, CHANNELS: ct.Constant[int], GROUPS: ct.Constant[int], EACH: ct.Constant[int], TILE: ct.Constant[int]
):
    """Rows without the mean of their group. A block has one group of one image, so no extent is in the grid."""
    first, columns = ct.bid(0) * CHANNELS + ct.bid(1) * EACH, ct.arange(TILE, dtype=ct.int32)
    total = ct.full((TILE,), 0.0, ct.float32)
    for n in range(EACH):
        total = total + ct.gather(x, (first + n, columns))
    mean = ct.sum(total, 0) / (EACH * TILE)
    ct.scatter(means, ct.bid(0) * GROUPS + ct.bid(1), mean)
    for n in range(EACH):
        ct.scatter(y, (first + n, columns), ct.gather(x, (first + n, columns)) - mean)


@ct.kernel
def causal_sum(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """The number for masked elements is finite, as in much attention: for large numbers, it is the maximum."""
    row = ct.bid(0)
    largest, total = ct.full((1, 1), -1e30, ct.float32), ct.zeros((1, 1), ct.float32)
    for n in range(row // TILE + 1):
        columns = (n * TILE + ct.arange(TILE, dtype=ct.int32))[None, :]
        values = ct.load(x, (row, n), (1, TILE), padding_mode=ct.PaddingMode.ZERO)
        values = ct.where(columns <= row, ct.minimum(values, -values), -50.0)
        new = ct.maximum(largest, ct.max(values, 1, keepdims=True))
        total = total * ct.exp(largest - new) + ct.sum(ct.exp(values - new), 1, keepdims=True)
        largest = new
    ct.store(y, (row, 0), total)


@ct.kernel
def flat_means(x, weight, mean, LENGTH: ct.Constant[int]):
    row = ct.bid(0)
    places = ct.arange(LENGTH, dtype=ct.int32)
    weighted = ct.gather(x, row * LENGTH + places) * ct.gather(weight, places)
    ct.scatter(mean, ct.full((1,), row, ct.int32), ct.reshape(ct.sum(weighted), (1,)))
