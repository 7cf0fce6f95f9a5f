"""TileGym's attention for Gemma (`tilegym.ops.gemma_attention`): soft cap on the scores, a sliding window, bf16.

By default it does not search: the first of its list, with the occupancy in the kernel's decorator.
"""

import as_launched
import attention_reference as attention
import numpy as np

import tilewright as tw

CAP = 50.0

module = tw.editable("tilegym.ops.cutile.gemma_attention")


def reference(q, k, v, G, window):
    k, v = (one.repeat(G, axis=1) for one in (k, v))
    score = attention.causal_mask(CAP * np.tanh(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) / CAP))
    if window:
        queries, keys = (np.arange(extent) for extent in score.shape[-2:])
        score = np.where(keys >= queries[:, None] - window, score, -np.inf)
    return attention.attend(score, v)


def trusted(q, k, v, G, window):
    """Eager, head by head: the scores of all heads at once do not fit."""
    import torch

    seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
    if window:
        seen = seen.triu(-window)
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        score = q[:, head] @ k[:, head // G].mT / q.shape[3] ** 0.5
        score = (CAP * torch.tanh(score.float() / CAP)).masked_fill(~seen, -torch.inf)
        out[:, head] = torch.softmax(score, dim=-1).to(q.dtype) @ v[:, head // G]
    return out


globals().update(as_launched.tasks(
    "gemma_attention",
    module=module,
    call=lambda ops, q, k, v, window: ops.gemma_attention(q, k, v, window_size=window, soft_cap=CAP),
    arrays=("q", "k", "v", "out"),
    listed="_gemma_fmha_configs",
    tensors=attention.TENSORS,
    reference=reference,
    trusted=trusted,
    flops=lambda B, H, G, S, D, window: 4 * B * H * G * D * (S * S / 2 if not window else S * min(S, window)),
    serves=lambda S, D: attention.serves(D) and S % 128 == 0,
    independent=("B",),
    constants={"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128)},
    hints={"num_ctas": (None, 1), "occupancy": (1, 2), "num_worker_warps": (None, 8)},
    workloads={
        "global": {"B": 8, "H": 2, "G": 2, "S": 4096, "D": 128, "window": 0},
        "window": {"B": 8, "H": 2, "G": 2, "S": 4096, "D": 128, "window": 1024},
    },
))  # fmt: skip
