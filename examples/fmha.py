"""Attention, forward: softmax(Q·Kᵀ / √D)·V in bf16 with an online softmax; causal or not.

One block computes TILE_M queries of one head and loops over the keys. It takes TILE_N keys at a time where no key is
masked, and TILE_M keys at a time on the diagonal of a causal mask, so that fewer masked products are computed."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

LOG2_E, SHAPE = 1.4426950408889634, ("B", "H", "S", "D")


def attend(query, k, v, b, h, n, WIDTH, scale, last, MASKED, highest, weight, total):
    """One step of the online softmax, over WIDTH keys from n·WIDTH on. If MASKED, keys after ``last`` do not count."""
    TILE_M, HEAD = query.shape
    keys = ct.load(k, (b, h, 0, n), (1, 1, HEAD, WIDTH), order=(0, 1, 3, 2), latency=2).reshape((HEAD, WIDTH))
    score = ct.mma(query, keys, ct.zeros((TILE_M, WIDTH), ct.float32))
    if MASKED:
        score = ct.where(n * WIDTH + ct.arange(WIDTH, dtype=ct.int32)[None, :] <= last, score, -float("inf"))
    higher = max(highest, ct.max(score, axis=1, keepdims=True) * scale)
    part = ct.exp2(score * scale - higher, flush_to_zero=True)
    fade = ct.exp2(highest - higher, flush_to_zero=True)
    values = ct.load(v, (b, h, n, 0), (1, 1, WIDTH, HEAD), padding_mode=ct.PaddingMode.ZERO, latency=4)
    total = ct.mma(part.astype(query.dtype), values.reshape((WIDTH, HEAD)), total * fade)
    return higher, weight * fade + ct.sum(part, axis=1, keepdims=True), total


@ct.kernel
def fmha(q, k, v, out, scale, HEADS: ct.Constant[int], HEAD: ct.Constant[int], TILE_M: ct.Constant[int],
         TILE_N: ct.Constant[int], CAUSAL: ct.Constant[bool], RAGGED: ct.Constant[bool]):  # fmt: skip
    b, h, m = ct.bid(1) // HEADS, ct.bid(1) % HEADS, ct.num_blocks(0) - 1 - ct.bid(0)  # the longest rows first
    query = ct.load(q, (b, h, m, 0), (1, 1, TILE_M, HEAD)).reshape((TILE_M, HEAD))
    best, weight = ct.full((TILE_M, 1), -float("inf"), ct.float32), ct.zeros((TILE_M, 1), ct.float32)
    total = ct.zeros((TILE_M, HEAD), ct.float32)
    seen = (m * TILE_M if CAUSAL else k.shape[2]) // TILE_N
    for n in range(seen):
        best, weight, total = attend(query, k, v, b, h, n, TILE_N, scale, 0, False, best, weight, total)
    if CAUSAL or RAGGED:
        WIDTH = TILE_M if CAUSAL else TILE_N
        last = m * TILE_M + ct.arange(TILE_M, dtype=ct.int32)[:, None] if CAUSAL else k.shape[2] - 1
        for n in range(seen * TILE_N // WIDTH, m + 1 if CAUSAL else seen + 1):
            best, weight, total = attend(query, k, v, b, h, n, WIDTH, scale, last, True, best, weight, total)
    result = ct.truediv(total, weight, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)
    ct.store(out, (b, h, m, 0), result.astype(out.dtype).reshape((1, 1, TILE_M, HEAD)))


def reference(q, k, v, causal):
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    score = np.where(np.tri(*score.shape[-2:], dtype=bool) | (not causal), score, -np.inf)
    part = np.exp(score - score.max(axis=-1, keepdims=True))
    return part @ v / part.sum(axis=-1, keepdims=True)


def trusted(q, k, v, causal):
    import torch
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def launch(q, k, v, out, B, H, S, D, causal, config):
    args = (q, k, v, out, LOG2_E / D**0.5, H, D, config.TILE_M, config.TILE_N, causal, S % config.TILE_N != 0)
    return tw.Launch(fmha, (-(-S // config.TILE_M), B * H), args)


task = tw.Task(
    name="fmha", reference=reference, trusted=trusted, launch=launch, serves=lambda D: D & (D - 1) == 0,
    tensors={name: tw.Tensor(SHAPE, "bfloat16") for name in "qkv"} | {"out": tw.Output(SHAPE, "bfloat16")},
    flops=lambda B, H, S, D, causal: 4 * B * H * S * S * D / (1 + causal), independent=("B", "H"),
    space=tw.Space(
        constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
        hints={"occupancy": (1, 2), "num_worker_warps": (None, 4, 8)},
        shipped={"TILE_M": 128, "TILE_N": 128, "occupancy": 2, "num_worker_warps": None}),
    workloads={
        "causal": {"B": 4, "H": 32, "S": 4096, "D": 128, "causal": True},
        "full": {"B": 4, "H": 32, "S": 4096, "D": 128, "causal": False},
        "short": {"B": 8, "H": 16, "S": 1024, "D": 64, "causal": True},
        "odd": {"B": 2, "H": 8, "S": 1000, "D": 128, "causal": False},
    },
)  # fmt: skip
