"""A task file whose masked loop is in a helper: a kernel calls it for the keys before the diagonal, and for those on
it."""

from __future__ import annotations

from tests.playbook.plain import HEAD

CALL = "_inner(k, v, total, highest, weight, query, m, rows, columns, STAGE, SEEN, CAP, HEAD, ROWS, TILE)"
HELPED = (
    HEAD
    + """
Int = ct.Constant[int]
LOW = -1e6


def _inner(k, v, total, highest, weight, query, block, i, j, STAGE: Int, WINDOW: Int, CAP: Int, D: Int, M: Int, N: Int):
    if STAGE == 1:
        if WINDOW > 0:
            start = max(0, block * M - WINDOW) // N * N
        else:
            start = 0
        end = block * M // N * N
    elif STAGE == 2:
        start = block * M // N * N
        end = (block + 1) * M
    else:
        start = 0
        end = k.shape[0]
    # over some keys
    count = start // N
    for n in range(start, end, N):
        keys = ct.load(k, (count, 0), (N, D), padding_mode=ct.PaddingMode.ZERO)
        score = ct.mma(query, ct.transpose(keys), ct.zeros((M, N), ct.float32))
        if CAP > 0:
            score = ct.tanh(score / CAP) * CAP
            if STAGE == 2:
                seen = i[:, None] >= (n + j[None, :])
                score = ct.where(seen, score, LOW)
            if WINDOW > 0:
                distance = n + j[None, :] - i[:, None]
                near = (distance >= -WINDOW) & (distance <= WINDOW)
                score = ct.where(near, score, LOW)
        else:
            if STAGE == 2:
                seen = i[:, None] >= (n + j[None, :])
                score = ct.where(seen, score, LOW)
            if WINDOW > 0:
                distance = n + j[None, :] - i[:, None]
                near = (distance >= -WINDOW) & (distance <= WINDOW)
                score = ct.where(near, score, LOW)
        higher = max(highest, ct.max(score, axis=1))
        part = ct.exp(score - higher[:, None])
        fade = ct.exp(highest - higher)
        weight = weight * fade + ct.sum(part, axis=1)
        total = total * fade[:, None]
        values = ct.load(v, (count, 0), (N, D), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(part.astype(query.dtype), values, total)
        highest = higher
        count += 1
    return total, highest, weight


@ct.kernel
def attention(q, k, v, out, SEEN: Int, CAP: Int, CAUSAL: Int, HEAD: Int, ROWS: Int, TILE: Int):
    m = ct.bid(0)
    rows = m * ROWS + ct.arange(ROWS, dtype=ct.int32)
    columns = ct.arange(TILE, dtype=ct.int32)
    query = ct.load(q, (m, 0), (ROWS, HEAD), padding_mode=ct.PaddingMode.ZERO)
    highest = ct.full((ROWS,), -1e9, ct.float32)
    weight = ct.zeros((ROWS,), ct.float32)
    total = ct.zeros((ROWS, HEAD), ct.float32)
    first = 1 if CAUSAL else 3
    total, highest, weight = FIRST
    if CAUSAL:
        total, highest, weight = SECOND
    ct.store(out, (m, 0), (total / weight[:, None]).astype(out.dtype))


def reference(q, k, v):
    score = q @ k.T
    rows, columns = np.arange(len(q))[:, None], np.arange(len(k))
    score = np.where((columns <= rows) & (columns >= rows - 64), score, -np.inf)
    part = np.exp(score - score.max(axis=1, keepdims=True))
    return part @ v / part.sum(axis=1, keepdims=True)


def launch(q, k, v, out, S, D, config):
    return tw.Launch(attention, (-(-S // config.ROWS),), (q, k, v, out, 64, 0, 1, D, config.ROWS, config.TILE))


task = tw.Task(
    name="attention",
    tensors={**{name: tw.Tensor(("S", "D"), "float16") for name in "qkv"}, "out": tw.Output(("S", "D"), "float16")},
    reference=reference,
    launch=launch,
    flops=lambda S, D: 2 * S * S * D,
    serves=lambda D: D == 16,
    space=tw.Space(constants={"ROWS": (16,), "TILE": (16,)}, shipped={"ROWS": 16, "TILE": 16}),
    workloads={"keys": {"S": 150, "D": 16}},
)
"""
)
HELPED = HELPED.replace("FIRST", CALL.replace("STAGE", "first")).replace("SECOND", CALL.replace("STAGE", "2"))
