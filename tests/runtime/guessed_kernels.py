"""Kernels of which one launch does not show what belongs together. They stand in a file, as every kernel must."""

from __future__ import annotations

import math

import cuda.tile as ct


@ct.kernel
def of_heads(x, y, heads: int, TILE_M: ct.Constant[int], TILE_D: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Each row of each head less its largest element. Heads may be as many as a row has elements."""
    batch, head = ct.bid(1) // heads, ct.bid(1) % heads
    rows = ct.load(x, (batch, head, ct.bid(0), 0), (1, 1, TILE_M, TILE_D))
    ct.store(y, (batch, head, ct.bid(0), 0), rows - ct.max(rows, axis=3, keepdims=True))


@ct.kernel
def of_splits(x, y, length: ct.Constant[int], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """The largest element of each split of each row."""
    row, split = ct.bid(0), ct.bid(1)
    largest = ct.full((1, TILE), -math.inf, ct.float32)
    for tile in range(split * length // TILE, ct.minimum((split + 1) * length, x.shape[1]) // TILE):
        largest = ct.maximum(largest, ct.load(x, (row, tile), (1, TILE)))
    ct.store(y, (row, split), ct.max(largest, axis=1, keepdims=True))


@ct.kernel
def by_place(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Keeps some of the elements, as dropout does: which ones depends on their place."""
    places = ct.bid(0) * TILE + ct.arange(TILE, dtype=ct.int32)
    kept = (places * 1103515245 >> 16) % 2 == 0
    ct.scatter(y, places, ct.where(kept, ct.gather(x, places), 0.0))


@ct.kernel
def with_table(x, weights, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """A polynomial with three weights: no other number of weights will do."""
    w0, w1 = ct.load(weights, (0,), (1,)).item(), ct.load(weights, (2,), (1,)).item()
    tile = ct.load(x, (ct.bid(0),), (TILE,))
    ct.store(y, (ct.bid(0),), tile * w0 + tile * tile * w1)


@ct.kernel
def by_block(x, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Each block less its largest element, so that another tile size gives other outputs. Loads have no padding."""
    tile = ct.load(x, (ct.bid(0),), (TILE,))
    ct.store(y, (ct.bid(0),), tile - ct.max(tile))


@ct.kernel
def kept_below(x, y, N: ct.Constant[int], ROWS_ON: ct.Constant[int], LIMIT: ct.Constant[float]):  # type: ignore[no-untyped-def]
    """Keeps the elements whose column is below ``LIMIT``, ``ROWS_ON`` rows further on. The comparison hides a NaN."""
    row = ct.bid(0)
    columns = ct.arange(N, dtype=ct.int32)
    mask = ct.gather(x, ((row + ROWS_ON) % ct.num_blocks(0), columns)) < LIMIT
    kept = ct.where(mask, ct.gather(x, (row, columns)), ct.full((N,), 0.0, dtype=ct.float32))
    ct.scatter(y, (row, columns), kept)


@ct.kernel
def scaled_by_group(x, scales, y, ROWS: ct.Constant[int], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Each ``ROWS`` rows share a scale. One block a row."""
    row, columns = ct.bid(0), ct.arange(TILE, dtype=ct.int32)
    ct.scatter(y, (row, columns), ct.gather(x, (row, columns)) * ct.gather(scales, row // ROWS))


@ct.kernel
def scaled_by_block(x, scales, y, LENGTH: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Each block of a flat array has a scale."""
    places = ct.bid(0) * LENGTH + ct.arange(LENGTH, dtype=ct.int32)
    ct.scatter(y, places, ct.gather(x, places) * ct.gather(scales, ct.bid(0)))


@ct.kernel
def scaled_in_steps(x, scales, y, rows: int, HOW: ct.Constant[int], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Many rows share a scale; ``HOW`` says in which way its place is computed. One block a row."""
    row, columns = ct.bid(0), ct.arange(TILE, dtype=ct.int32)
    if HOW == 0:
        place = row >> 7
    elif HOW == 1:
        place = row // (rows * 3)
    elif HOW == 2:
        place = row & 0x380
    elif HOW == 3:
        place = row | 127
    else:
        place = 0
        for _ in range(100, row):
            place = 1
    ct.scatter(y, (row, columns), ct.gather(x, (row, columns)) * ct.gather(scales, place))


@ct.kernel
def scaled_flattened(x, scales, y, B: int, S: int, HOW: ct.Constant[int], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Rows of three axes, numbered through, share a scale; ``HOW`` says in which way its place is computed."""
    a, b, s, columns = ct.bid(0), ct.bid(1), ct.bid(2), ct.arange(TILE, dtype=ct.int32)
    row = (a * B + b) * S + s
    if HOW == 0:
        place = row // 256
    elif HOW == 1:
        place = row % 2048 >> 8
    elif HOW == 2:
        place = ct.astype(ct.astype(row, ct.float32) * 0.00390625, ct.int32)
    elif HOW == 3:
        place = row * 16384 >> 22
    else:
        place = 0
    ct.scatter(y, (a, b, s, columns), ct.gather(x, (a, b, s, columns)) * ct.gather(scales, place))


@ct.kernel
def valid_rows(x, count, y, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Zeros from row ``count[0]`` on."""
    row, columns = ct.bid(0), ct.arange(TILE, dtype=ct.int32)
    below = row < ct.load(count, (0,), (1,)).item()
    ct.scatter(y, (row, columns), ct.where(below, ct.gather(x, (row, columns)), 0.0))


@ct.kernel
def masked_rows(x, y, LENGTH: ct.Constant[int], BLOCK: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Keeps what is not after the row's own place. Arrays: (batch * LENGTH, LENGTH); grid: (LENGTH, batch)."""
    place = ct.bid(0)
    row = ct.bid(1) * LENGTH + place
    for block in range(ct.cdiv(LENGTH, BLOCK)):
        column = ct.arange(BLOCK, dtype=ct.int32) + block * BLOCK
        kept = ct.astype(column <= place, ct.float32)
        tile = ct.load(x, index=(row, block), shape=(1, BLOCK), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, index=(row, block), tile=ct.astype(tile * ct.reshape(kept, (1, BLOCK)), y.dtype))


@ct.kernel
def in_parts(x, x_out, z, z_out, PARTS: ct.Constant[int], TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Doubles a row of ``x`` in parts, and a row of ``z`` as the last part. Grid: (rows, PARTS + 1)."""
    row, part = ct.bid(0), ct.bid(1)
    if part < PARTS:
        ct.store(x_out, index=(row, part), tile=ct.load(x, index=(row, part), shape=(1, TILE)) * 2)
    else:
        ct.store(z_out, index=(row, 0), tile=ct.load(z, index=(row, 0), shape=(1, TILE)) * 2)


@ct.kernel
def looked_up(x, table, y, scale: float, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    """Rows of a table; which ones say the numbers in ``x``."""
    row = ct.astype(ct.load(x, (ct.bid(0),), (1,)).item() * scale, ct.int32)
    ct.store(y, (ct.bid(0), 0), ct.load(table, (row, 0), (1, TILE)))


@ct.kernel
def resized(x, y, scale: float, TILE: ct.Constant[int]):  # type: ignore[no-untyped-def]
    row, columns = ct.astype(ct.bid(0) * scale, ct.int32), ct.arange(TILE, dtype=ct.int32)
    ct.scatter(y, (ct.bid(0), columns), ct.gather(x, (row, columns)))


@ct.kernel
def some_rows(x, y, each: ct.Constant[int], width: ct.Constant[int]):
    """``each`` rows a block."""
    rows = ct.load(x, (ct.bid(0), 0), (each, width))
    ct.store(y, (ct.bid(0), 0), rows * ct.rsqrt(ct.sum(rows * rows, axis=1, keepdims=True) + 1))
