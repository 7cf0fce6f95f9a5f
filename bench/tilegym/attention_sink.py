"""TileGym's attention with sinks (`tilegym.ops.attention_sink`), bf16: a learned score a head that takes weight
and gives none; causal, with or without a sliding window.

The wrapper also copies queries, keys and values into another order; the task is the kernel alone.
"""

import as_launched
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.attention_sink")


def call(ops, q, k, v, sinks, window):
    """From the kernel's order of axes back to that of the operation."""
    (B, heads, S, D), H = q.shape, k.shape[1]
    query = q.new_empty(B, S, H, heads // H, D)
    keys = k.new_empty(B, S, H, D)
    return ops.attention_sink(query, keys, keys, sinks, D**-0.5, window or None, 0)


def reference(q, k, v, sinks, start, G, window):
    k, v = (one.repeat(G, axis=1) for one in (k, v))
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    queries, keys = np.arange(score.shape[-2])[:, None] + start[0], np.arange(score.shape[-1])
    seen = (keys <= queries) & (keys > queries - (window or score.shape[-1] + 1))
    score = np.where(seen, score, -np.inf)
    sink = sinks[:, None, None]
    highest = np.maximum(score.max(axis=-1, keepdims=True), sink)
    part = np.exp(score - highest)
    return part @ v / (part.sum(axis=-1, keepdims=True) + np.exp(sink - highest))


def trusted(q, k, v, sinks, start, G, window):
    """Eager, head by head: the scores of all heads at once do not fit."""
    import torch

    keys = torch.arange(k.shape[2], device=q.device)
    queries = torch.arange(q.shape[2], device=q.device)[:, None] + start
    seen = (keys <= queries) & (keys > queries - (window or k.shape[2] + 1))
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        score = (q[:, head] @ k[:, head // G].mT).float() / q.shape[3] ** 0.5
        score = score.masked_fill(~seen, -torch.inf)
        sink = sinks[head].float().expand(*score.shape[:2], 1)
        weight = torch.softmax(torch.cat((score, sink), dim=-1), dim=-1)[..., :-1]
        out[:, head] = weight.to(q.dtype) @ v[:, head // G]
    return out


globals().update(as_launched.tasks(
    "attention_sink",
    module=module,
    call=call,
    arrays=("q", "k", "v", "sinks", "out", "start"),
    listed="_attention_sink_autotune_configs",
    tensors={
        "q": tw.Tensor(("B", "H * G", "S", "D"), "bfloat16"),
        "k": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
        "v": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
        "sinks": tw.Tensor(("H * G",), "bfloat16"),
        "start": tw.Tensor((1,), "int32", tw.integers(0, 1)),
        "out": tw.Output(("B", "H * G", "S", "D"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    flops=lambda B, H, G, S, D, window: 4 * B * H * G * D * (S * S / 2 if not window else S * min(S, window)),
    serves=lambda S, D: D & (D - 1) == 0 and D >= 16 and S % 128 == 0,
    independent=("B",),
    constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
    hints={"num_ctas": (1,), "occupancy": (1, 2), "num_worker_warps": (None, 8)},
    workloads={
        "full": {"B": 8, "H": 2, "G": 8, "S": 4096, "D": 64, "window": 0},
        "window": {"B": 8, "H": 2, "G": 8, "S": 4096, "D": 64, "window": 128},
    },
))  # fmt: skip
