"""softmax(Q·Kᵀ / √D + bias)·V in bf16, with a bias for each pair of positions that all heads share."""

import cuda.tile as ct
import numpy as np

import tilewright as tw

SHAPE = ("B", "H", "S", "D")


@ct.kernel
def attention_bias(q, k, v, bias, out, scale, HEAD: ct.Constant[int], TILE_M: ct.Constant[int],
                   TILE_N: ct.Constant[int]):  # fmt: skip
    m, h, b = ct.bid(0), ct.bid(1), ct.bid(2)
    ZERO = ct.PaddingMode.ZERO
    query = ct.load(q, (b, h, m, 0), (1, 1, TILE_M, HEAD), padding_mode=ZERO).reshape((TILE_M, HEAD))
    highest = ct.full((TILE_M, 1), -1e30, ct.float32)
    weight = ct.zeros((TILE_M, 1), ct.float32)
    total = ct.zeros((TILE_M, HEAD), ct.float32)
    for n in range(ct.cdiv(k.shape[2], TILE_N)):
        keys = ct.load(k, (b, h, n, 0), (1, 1, TILE_N, HEAD), padding_mode=ZERO).reshape((TILE_N, HEAD))
        score = ct.mma(query, ct.transpose(keys), ct.zeros((TILE_M, TILE_N), ct.float32)) * scale
        score = score + ct.load(bias, (m, n), (TILE_M, TILE_N), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        higher = ct.maximum(highest, ct.max(score, axis=1, keepdims=True))
        part = ct.exp(score - higher)
        fade = ct.exp(highest - higher)
        values = ct.load(v, (b, h, n, 0), (1, 1, TILE_N, HEAD), padding_mode=ZERO).reshape((TILE_N, HEAD))
        total = ct.mma(part.astype(q.dtype), values, total * fade)
        weight = weight * fade + ct.sum(part, axis=1, keepdims=True)
        highest = higher
    result = (total / weight).astype(out.dtype)
    ct.store(out, (b, h, m, 0), result.reshape((1, 1, TILE_M, HEAD)))


def reference(q, k, v, bias):
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    part = np.exp(score - score.max(axis=-1, keepdims=True))
    return part @ v / part.sum(axis=-1, keepdims=True)


def trusted(q, k, v, bias):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def launch(q, k, v, bias, out, B, H, S, D, config):
    grid = (-(-S // config.TILE_M), H, B)
    return tw.Launch(attention_bias, grid, (q, k, v, bias, out, D**-0.5, D, config.TILE_M, config.TILE_N))


task = tw.Task(
    name="attention_bias",
    tensors={
        **{name: tw.Tensor(SHAPE, "bfloat16") for name in "qkv"},
        "bias": tw.Tensor(("S", "S"), "bfloat16"),
        "out": tw.Output(SHAPE, "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    launch=launch,
    flops=lambda B, H, S, D: 4 * B * H * S * S * D,
    independent=("B", "H"),
    serves=lambda D: D & (D - 1) == 0,
    space=tw.Space(
        constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
        hints={"occupancy": (None, 2), "num_worker_warps": (None, 8)},
        shipped={"TILE_M": 64, "TILE_N": 64, "occupancy": None, "num_worker_warps": None},
    ),
    workloads={"D64": {"B": 2, "H": 16, "S": 2048, "D": 64}, "D128": {"B": 1, "H": 16, "S": 2048, "D": 128}},
)
