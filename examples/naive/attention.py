"""Attention, forward, in bf16: softmax(Q·Kᵀ / √D)·V with an online softmax; a plain kernel that follows the formula."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

SHAPE = ("B", "H", "S", "D")


@ct.kernel
def attention(q, k, v, out, scale, HEAD: ct.Constant[int], TILE_M: ct.Constant[int], TILE_N: ct.Constant[int],
              CAUSAL: ct.Constant[bool]):  # fmt: skip
    m, h, b = ct.bid(0), ct.bid(1), ct.bid(2)
    ZERO = ct.PaddingMode.ZERO
    query = ct.load(q, (b, h, m, 0), (1, 1, TILE_M, HEAD), padding_mode=ZERO).reshape((TILE_M, HEAD))
    rows = m * TILE_M + ct.arange(TILE_M, dtype=ct.int32)[:, None]
    highest = ct.full((TILE_M, 1), -float("inf"), ct.float32)
    weight = ct.zeros((TILE_M, 1), ct.float32)
    total = ct.zeros((TILE_M, HEAD), ct.float32)
    steps = ct.cdiv(k.shape[2], TILE_N)
    if CAUSAL:
        steps = min(steps, ct.cdiv((m + 1) * TILE_M, TILE_N))
    for n in range(steps):
        keys = ct.load(k, (b, h, n, 0), (1, 1, TILE_N, HEAD), padding_mode=ZERO).reshape((TILE_N, HEAD))
        score = ct.mma(query, ct.transpose(keys), ct.zeros((TILE_M, TILE_N), ct.float32)) * scale
        columns = n * TILE_N + ct.arange(TILE_N, dtype=ct.int32)[None, :]
        score = ct.where(columns < k.shape[2], score, -float("inf"))
        if CAUSAL:
            score = ct.where(columns <= rows, score, -float("inf"))
        higher = ct.maximum(highest, ct.max(score, axis=1, keepdims=True))
        part = ct.exp(score - higher)
        fade = ct.exp(highest - higher)
        values = ct.load(v, (b, h, n, 0), (1, 1, TILE_N, HEAD), padding_mode=ZERO).reshape((TILE_N, HEAD))
        total = ct.mma(part.astype(q.dtype), values, total * fade)
        weight = weight * fade + ct.sum(part, axis=1, keepdims=True)
        highest = higher
    result = (total / weight).astype(out.dtype)
    ct.store(out, (b, h, m, 0), result.reshape((1, 1, TILE_M, HEAD)))


def reference(q, k, v, causal):
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    score = np.where(np.tri(*score.shape[-2:], dtype=bool) | (not causal), score, -np.inf)
    part = np.exp(score - score.max(axis=-1, keepdims=True))
    return part @ v / part.sum(axis=-1, keepdims=True)


def trusted(q, k, v, causal):
    import torch
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def launch(q, k, v, out, B, H, S, D, causal, config):
    grid = (-(-S // config.TILE_M), H, B)
    return tw.Launch(attention, grid, (q, k, v, out, D**-0.5, D, config.TILE_M, config.TILE_N, causal))


task = tw.Task(
    name="naive_attention", reference=reference, trusted=trusted, launch=launch, independent=("B", "H"),
    tensors={name: tw.Tensor(SHAPE, "bfloat16") for name in "qkv"} | {"out": tw.Output(SHAPE, "bfloat16")},
    flops=lambda B, H, S, D, causal: 4 * B * H * S * S * D / (1 + causal), serves=lambda D: D & (D - 1) == 0,
    space=tw.Space(
        constants={"TILE_M": (64,), "TILE_N": (64,)},
        shipped={"TILE_M": 64, "TILE_N": 64}),
    workloads={
        "causal": {"B": 4, "H": 16, "S": 2048, "D": 64, "causal": True},
        "full": {"B": 4, "H": 16, "S": 2048, "D": 64, "causal": False},
    },
)  # fmt: skip
