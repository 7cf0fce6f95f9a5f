"""Task files with loops that mask tiles by comparing positions."""

from __future__ import annotations

from tests.playbook.plain import HEAD

MASK = "columns <= rows"
CAUSAL = (
    HEAD
    + """
LOW = -float("inf")


@ct.kernel
def attention(q, k, v, out, SEEN: ct.Constant[int], HEAD: ct.Constant[int], TILE: ct.Constant[int]):
    m = ct.bid(0)
    rows = m * TILE + ct.arange(TILE, dtype=ct.int32)[:, None]
    query = ct.load(q, (m, 0), (TILE, HEAD), padding_mode=ct.PaddingMode.ZERO)
    highest = ct.full((TILE, 1), LOW, ct.float32)
    weight = ct.zeros((TILE, 1), ct.float32)
    total = ct.zeros((TILE, HEAD), ct.float32)
    steps = ct.cdiv(k.shape[0], 32)
    # over all keys
    for n in range(steps):
        keys = ct.load(k, (n, 0), (32, HEAD), padding_mode=ct.PaddingMode.ZERO)
        score = ct.mma(query, ct.transpose(keys), ct.zeros((TILE, 32), ct.float32))
        # which keys a query sees
        columns = n * 32 + ct.arange(32, dtype=ct.int32)[None, :]
        score = ct.where(columns <= rows, score, LOW)
        higher = ct.maximum(highest, ct.max(score, axis=1, keepdims=True))
        part = ct.exp(score - higher)
        fade = ct.exp(highest - higher)
        values = ct.load(v, (n, 0), (32, HEAD), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(part.astype(k.dtype), values, total * fade)
        weight = weight * fade + ct.sum(part, axis=1, keepdims=True)
        highest = higher
    ct.store(out, (m, 0), (total / weight).astype(out.dtype))


def reference(q, k, v):
    score = q @ k.T
    rows, columns = np.arange(len(q))[:, None], np.arange(len(k))
    score = np.where(columns <= rows, score, -np.inf)
    part = np.exp(score - score.max(axis=1, keepdims=True))
    return part @ v / part.sum(axis=1, keepdims=True)


def launch(q, k, v, out, S, D, config):
    return tw.Launch(attention, (-(-S // config.TILE),), (q, k, v, out, 64, D, config.TILE))


task = tw.Task(
    name="attention",
    tensors={**{name: tw.Tensor(("S", "D"), "float16") for name in "qkv"}, "out": tw.Output(("S", "D"), "float16")},
    reference=reference,
    launch=launch,
    flops=lambda S, D: 2 * S * S * D,
    serves=lambda D: D == 16,
    space=tw.Space(constants={"TILE": (64,)}, shipped={"TILE": 64}),
    workloads={"keys": {"S": 500, "D": 16}},
)
"""
)
TIGHT = CAUSAL.replace("range(steps)", "range(min(steps, (m + 1) * TILE // 32))")
WINDOW = (
    CAUSAL.replace('-float("inf")\n', "-1e9\n")
    .replace(f"ct.where({MASK},", f"ct.where(({MASK}) & (columns > rows - SEEN),")
    .replace(f"np.where({MASK},", f"np.where(({MASK}) & (columns > rows - 64),")
)
WIDE = WINDOW.replace("(q, k, v, out, 64,", "(q, k, v, out, 480,").replace("rows - 64", "rows - 480")
STEPS = (
    CAUSAL.replace("range(steps)", "range(0, k.shape[0], 32)")
    .replace("(n, 0)", "(n // 32, 0)")
    .replace("n * 32 + ct.arange", "n + ct.arange")
)
LOADED = CAUSAL.replace(f"ct.where({MASK},", "ct.where(ct.load(q, (m, 0), (TILE, 1)) > 0.0,")
STORED = CAUSAL.replace(
    "        highest = higher\n", "        highest = higher\n        ct.store(out, (m, 0), total.astype(out.dtype))\n"
)
UNKNOWN = CAUSAL.replace(f"ct.where({MASK},", f"ct.where(({MASK}) & ((rows - columns) % 2 == 0),")
COUNTED = CAUSAL.replace("weight * fade + ct.sum", "weight * fade + 1 + ct.sum")
GRADIENT = (
    HEAD
    + """
@ct.kernel
def gradient(q, k, d, out, HEAD: ct.Constant[int], TILE: ct.Constant[int]):
    n = ct.bid(0)
    columns = n * TILE + ct.arange(TILE, dtype=ct.int32)[:, None]
    keys = ct.load(k, (n, 0), (TILE, HEAD), padding_mode=ct.PaddingMode.ZERO)
    total = ct.zeros((TILE, HEAD), ct.float32)
    for m in range(0, ct.cdiv(q.shape[0], TILE)):
        query = ct.load(q, (m, 0), (TILE, HEAD), padding_mode=ct.PaddingMode.ZERO)
        part = ct.mma(keys, ct.transpose(query), ct.zeros((TILE, TILE), ct.float32))
        rows = m * TILE + ct.arange(TILE, dtype=ct.int32)
        part = ct.where(columns > rows[None, :], 0.0, part)
        given = ct.load(d, (m, 0), (TILE, HEAD), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(part.astype(d.dtype), given, total)
    ct.store(out, (n, 0), total.astype(out.dtype))


def reference(q, k, d):
    return np.where(np.tri(len(q), dtype=bool), q @ k.T, 0).T @ d


def launch(q, k, d, out, S, D, config):
    return tw.Launch(gradient, (-(-S // config.TILE),), (q, k, d, out, D, config.TILE))


task = tw.Task(
    name="gradient",
    tensors={**{name: tw.Tensor(("S", "D"), "float16") for name in "qkd"}, "out": tw.Output(("S", "D"), "float16")},
    reference=reference,
    launch=launch,
    flops=lambda S, D: 2 * S * S * D,
    serves=lambda D: D == 16,
    space=tw.Space(constants={"TILE": (32,)}, shipped={"TILE": 32}),
    workloads={"keys": {"S": 250, "D": 16}},
)
"""
)
