"""Task files with loops over the chunks of a row, and with blocks of unequal length."""

from __future__ import annotations

from tests.playbook.plain import HEAD

TWICE = (
    HEAD
    + """
@ct.kernel
def centred(x, weight, y, TILE_N: ct.Constant[int], COLUMNS: ct.Constant[int]):
    row = ct.bid(0)
    total = ct.zeros((1, TILE_N), ct.float32)
    # the mean
    for step in range(ct.cdiv(COLUMNS, TILE_N)):  # in chunks
        values = ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = total + values
    mean = ct.sum(total) / COLUMNS
    for n in range(0, ct.cdiv(COLUMNS, TILE_N)):
        again = ct.load(x, (row, n), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        scale = ct.load(weight, (n,), (TILE_N,), padding_mode=ct.PaddingMode.ZERO)
        ct.store(y, (row, n), (again - mean) * scale)


def reference(x, weight):
    return (x - x.mean(axis=1, keepdims=True)) * weight


def launch(x, weight, y, M, N, config):
    return tw.Launch(centred, (M,), (x, weight, y, config.TILE_N, N))


task = tw.Task(
    name="centred",
    tensors={
        "x": tw.Tensor(("M", "N"), "float32"),
        "weight": tw.Tensor(("N",), "float32"),
        "y": tw.Output(("M", "N"), "float32"),
    },
    reference=reference,
    launch=launch,
    flops=lambda M, N: 3 * M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE_N": (64,)}, shipped={"TILE_N": 64}),
    workloads={"rows": {"M": 2048, "N": 500}},
)
"""
)
LONG = TWICE.replace('"M": 2048, "N": 500', '"M": 64, "N": 70000')
ONCE = TWICE.replace("again = ct.load(x, (row, n)", "again = ct.load(y, (row, n)")
LEAVES = TWICE.replace(
    "        total = total + values\n", "        total = total + values\n        if step > 7:\n            break\n"
)
FLAGGED = TWICE.replace(
    """        values = ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
        total = total + values
""",
    """        if FORWARD == 1:
            values = ct.load(x, (row, step), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
            total = total + values
        else:
            behind = ct.cdiv(COLUMNS, TILE_N) - 1 - step
            total = total + ct.load(x, (row, behind), (1, TILE_N), padding_mode=ct.PaddingMode.ZERO)
""",
)
FLAGGED = FLAGGED.replace("COLUMNS: ct.Constant[int])", "COLUMNS: ct.Constant[int], FORWARD: ct.Constant[int])")
FLAGGED = FLAGGED.replace("config.TILE_N, N)", "config.TILE_N, N, 1)")
"""Loads in branches that a constant of the launch decides."""

SOFTMAX = (
    HEAD
    + '''
@ct.kernel
def softmax(y, x, ROWS: ct.Constant[int], COLUMNS: ct.Constant[int], TILE: ct.Constant[int]):
    """Persistent, in chunks, as a library writes it."""
    for row in range(ct.bid(0), ROWS, ct.num_blocks(0)):
        row_max = ct.full((1,), -np.inf, dtype=ct.float32)
        total = ct.full((1,), 0.0, dtype=ct.float32)
        chunks = (COLUMNS + TILE - 1) // TILE
        first = ct.arange(TILE, dtype=ct.int32)
        # Pass 1: the maximum
        for n in range(chunks):
            columns = ct.full((TILE,), n * TILE, dtype=ct.int32) + first
            chunk = ct.gather(x, (row, columns), padding_value=-np.inf)
            chunk = ct.astype(chunk, ct.float32)
            chunk_max = ct.max(chunk, 0, keepdims=True)
            row_max = ct.maximum(row_max, chunk_max)
        # Pass 2: the sum
        for n in range(chunks):
            columns = ct.full((TILE,), n * TILE, dtype=ct.int32) + first
            chunk = ct.gather(x, (row, columns), padding_value=-np.inf)
            chunk = ct.astype(chunk, ct.float32)
            shifted = chunk - row_max
            numerator = ct.exp(shifted)
            total = total + ct.sum(numerator, 0, keepdims=True)
        inverse = 1.0 / total
        for n in range(chunks):
            columns = ct.full((TILE,), n * TILE, dtype=ct.int32) + first
            chunk = ct.gather(x, (row, columns), padding_value=-np.inf)
            chunk = ct.astype(chunk, ct.float32)
            ct.scatter(y, (row, columns), ct.astype(ct.exp(chunk - row_max) * inverse, y.dtype))


def reference(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def launch(y, x, M, N, config):
    return tw.Launch(softmax, (min(M, 264),), (y, x, M, N, config.TILE))


task = tw.Task(
    name="softmax",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=reference,
    launch=launch,
    flops=lambda M, N: 6 * M * N,
    independent=("M",),
    space=tw.Space(constants={"TILE": (256,)}, shipped={"TILE": 256}),
    workloads={"rows": {"M": 512, "N": 1000}},
)
'''
)
RELOADED = (
    HEAD
    + """
@ct.kernel
def scaled(x, y, COLUMNS: ct.Constant[int], BLOCK: ct.Constant[int], ALIGNED: ct.Constant[bool]):
    row = ct.bid(0)
    columns = ct.arange(BLOCK, dtype=ct.int32)
    if ALIGNED:
        tile = ct.gather(x, (row, columns), check_bounds=False)
    else:
        tile = ct.gather(x, (row, columns), padding_value=0.0)
    wide = ct.astype(tile, ct.float32)
    scale = ct.rsqrt(ct.sum(wide * wide, axis=0, keepdims=False) / COLUMNS)
    # to save registers
    if ALIGNED:
        again = ct.gather(x, (row, columns), check_bounds=False)
    else:
        again = ct.gather(x, (row, columns), padding_value=0.0)
    ct.scatter(y, (row, columns), ct.astype(ct.astype(again, ct.float32) * scale, y.dtype))


def launch(x, y, M, N, config):
    return tw.Launch(scaled, (M,), (x, y, N, 1 << (N - 1).bit_length(), False))


task = tw.Task(
    name="scaled",
    tensors={"x": tw.Tensor(("M", "N"), "bfloat16"), "y": tw.Output(("M", "N"), "bfloat16")},
    reference=lambda x: x / np.sqrt((x * x).mean(axis=1, keepdims=True)),
    launch=launch,
    flops=lambda M, N: 3 * M * N,
    independent=("M",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"rows": {"M": 2048, "N": 1000}},
)
"""
)

CAUSAL = (
    (
        HEAD
        + """
@ct.kernel
def sums(x, y, T: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    total = ct.zeros((T, T), ct.float32)
    for n in range(row + 1):
        total = total + ct.load(x, (n, column), (T, T), padding_mode=ct.PaddingMode.ZERO)
    ct.store(y, (row, column), total)


def reference(x):
    blocks = [x[: 16 * n + 16].reshape(-1, 16, x.shape[1]).sum(axis=0) for n in range(x.shape[0] // 16)]
    return np.concatenate(blocks)


def launch(x, y, K, N):
    return tw.Launch(sums, (K, -(-N // 16)), (x, y, 16))


task = tw.Task(
    name="sums",
    tensors={"x": tw.Tensor((512, "N"), "float32"), "y": tw.Output((512, "N"), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda N: 512 * 17 * N,
    independent=("N",),
    space=tw.Space(constants={}, shipped={}),
    workloads={"square": {"N": 512}},
)
"""
    )
    .replace("def launch(x, y, K, N)", "def launch(x, y, N)")
    .replace("(K, -(-N // 16))", "(32, -(-N // 16))")
)
EQUAL = CAUSAL.replace("range(row + 1)", "range(3)")
SHRINKING = CAUSAL.replace("range(row + 1)", "range(row, 32)")
NO_WINDOW = (
    CAUSAL.replace(
        "    for n in range(row + 1):",
        "    first = max(0, row + 1 - WINDOW) if WINDOW > 0 else 0\n    for n in range(first, row + 1):",
    )
    .replace("T: ct.Constant[int])", "T: ct.Constant[int], WINDOW: ct.Constant[int])")
    .replace("y, 16)", "y, 16, 0)")
)
WINDOW = NO_WINDOW.replace("y, 16, 0)", "y, 16, 3)")
LOOP = """    for n in range(row + 1):
        total = total + ct.load(x, (n, column), (T, T), padding_mode=ct.PaddingMode.ZERO)
"""
TWO_PARTS = CAUSAL.replace(
    LOOP, LOOP.replace("row + 1", "min(1, row + 1)") + LOOP.replace("row + 1", "min(1, row + 1), row + 1")
)
IN_HELPER = CAUSAL.replace(
    """@ct.kernel
def sums(x, y, T: ct.Constant[int]):
""",
    """def added(x, total, last, column, T: ct.Constant[int]):
    for n in range(last + 1):
        total = total + ct.load(x, (n, column), (T, T), padding_mode=ct.PaddingMode.ZERO)
    return total


@ct.kernel
def sums(x, y, T: ct.Constant[int]):
""",
).replace(
    """    for n in range(row + 1):
        total = total + ct.load(x, (n, column), (T, T), padding_mode=ct.PaddingMode.ZERO)
    ct.store""",
    """    total = added(x, total, row, column, T)
    ct.store""",
)

LATENT = (
    HEAD
    + """
@ct.kernel
def latent(K, V, y, ROWS: ct.Constant[int], TILE: ct.Constant[int], DEPTH: ct.Constant[int]):
    batch = ct.bid(0)
    total = ct.zeros((TILE, DEPTH), ct.float32)
    step = 0
    for start in range(0, ROWS, TILE):
        k = ct.load(
            K, index=(batch, step, 0), shape=(1, TILE, DEPTH), padding_mode=ct.PaddingMode.ZERO, latency=2
        )
        k = ct.reshape(k, (TILE, DEPTH))
        weight = ct.max(k, axis=1, keepdims=True)
        # the values
        v = ct.load(
            V,
            (step, batch, 0),
            (TILE, 1, DEPTH),
            order=(1, 0, 2),
            padding_mode=ct.PaddingMode.ZERO,
            allow_tma=True,
        )
        v = ct.reshape(v, (TILE, DEPTH))
        total = total + weight * v
        step += 1
    total = ct.reshape(ct.sum(total, axis=0), (1, DEPTH))
    ct.store(y, (batch, 0), total)


def reference(x):
    return (x.max(axis=2, keepdims=True) * x).sum(axis=1)


def launch(x, y, B, M, N):
    return tw.Launch(latent, (B,), (x, x, y, M, 32, N))


task = tw.Task(
    name="latent",
    tensors={"x": tw.Tensor(("B", "M", "N"), "float32"), "y": tw.Output(("B", "N"), "float32")},
    reference=reference,
    launch=launch,
    flops=lambda B, M, N: 3 * B * M * N,
    independent=("B",),
    serves=lambda B, M, N: N == 32,
    space=tw.Space(constants={}, shipped={}),
    workloads={"batches": {"B": 264, "M": 500, "N": 32}},
)
"""
)
"""One array is passed for two parameters, and loaded through both."""
