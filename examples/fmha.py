"""Attention, forward: softmax(Q·Kᵀ / √D)·V in bf16 with an online softmax; causal or not.

One block owns TILE_M queries of one head and walks over the keys, TILE_N at a time.
"""

import cuda.tile as ct
import numpy as np

import tilewright as tw

LOG2_E = 1.4426950408889634
SHAPE = ("B", "H", "S", "D")


@ct.kernel
def fmha(q, k, v, out, scale: float, HEADS: ct.Constant[int], HEAD: ct.Constant[int], TILE_M: ct.Constant[int],
         TILE_N: ct.Constant[int], CAUSAL: ct.Constant[bool], RAGGED: ct.Constant[bool]):  # fmt: skip
    b, h = ct.bid(1) // HEADS, ct.bid(1) % HEADS
    m = ct.num_blocks(0) - 1 - ct.bid(0)  # under a causal mask the last queries have most to do: first
    length = k.shape[2]
    query = ct.load(q, (b, h, m, 0), (1, 1, TILE_M, HEAD)).reshape((TILE_M, HEAD))
    rows = m * TILE_M + ct.arange(TILE_M, dtype=ct.int32)[:, None]
    highest = ct.full((TILE_M, 1), -float("inf"), ct.float32)
    weight = ct.zeros((TILE_M, 1), ct.float32)
    sum_ = ct.zeros((TILE_M, HEAD), ct.float32)
    end, masked = ct.cdiv(length, TILE_N), length // TILE_N
    if CAUSAL:
        end, masked = min(end, ct.cdiv((m + 1) * TILE_M, TILE_N)), min(masked, m * TILE_M // TILE_N)
    for n in range(end):
        keys = ct.load(k, (b, h, 0, n), (1, 1, HEAD, TILE_N), order=(0, 1, 3, 2), latency=2).reshape((HEAD, TILE_N))
        score = ct.mma(query, keys, ct.zeros((TILE_M, TILE_N), ct.float32))
        if (CAUSAL or RAGGED) and n >= masked:
            columns = n * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]
            seen = (columns < length) & (columns <= rows) if CAUSAL else columns < length
            score = ct.where(seen, score, -float("inf"))
        higher = max(highest, ct.max(score, axis=1, keepdims=True) * scale)
        part = ct.exp2(score * scale - higher, flush_to_zero=True)
        fade = ct.exp2(highest - higher, flush_to_zero=True)
        weight, highest = weight * fade + ct.sum(part, axis=1, keepdims=True), higher
        values = ct.load(v, (b, h, n, 0), (1, 1, TILE_N, HEAD), padding_mode=ct.PaddingMode.ZERO, latency=4)
        sum_ = ct.mma(part.astype(q.dtype), values.reshape((TILE_N, HEAD)), sum_ * fade)
    result = ct.truediv(sum_, weight, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)
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
    name="fmha", reference=reference, trusted=trusted, launch=launch,
    tensors={name: tw.Tensor(SHAPE, "bfloat16") for name in "qkv"} | {"out": tw.Output(SHAPE, "bfloat16")},
    flops=lambda B, H, S, D, causal: 4 * B * H * S * S * D / (2 if causal else 1), independent=("B", "H"),
    space=tw.Space(
        constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
        hints={"occupancy": (1, 2), "num_worker_warps": (None, 4, 8)},
        shipped={"TILE_M": 128, "TILE_N": 128, "occupancy": 2, "num_worker_warps": None},
    ),
    workloads={
        "causal": {"B": 4, "H": 32, "S": 4096, "D": 128, "causal": True},
        "full": {"B": 4, "H": 32, "S": 4096, "D": 128, "causal": False},
        "short": {"B": 8, "H": 16, "S": 1024, "D": 64, "causal": True},
        "odd": {"B": 2, "H": 8, "S": 1000, "D": 128, "causal": False},
    },
)  # fmt: skip
