"""TileGym's sliding-window attention (`tilegym.ops.swa_attention`), fp16, causal; tiles tuned on a B300.

The wrapper passes queries, keys and values of all heads as one tall matrix each.
"""

import as_launched
import attention_reference as attention
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.experimental.swa_attention")


def reference(q, k, v, S, D, window):
    score = attention.causal_mask(q @ k.swapaxes(-1, -2) / np.sqrt(D))
    score = np.where(np.arange(S) > np.arange(S)[:, None] - window, score, -np.inf)
    return attention.attend(score, v)


def trusted(q, k, v, S, window):
    import torch

    seen = torch.ones(S, S, dtype=torch.bool, device=q.device).tril().triu(1 - window)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


globals().update(as_launched.tasks(
    "swa_attention",
    module=module,
    call=lambda ops, q, k, v, window: ops.swa_attention(q, k, v, window),
    arrays=("q", "k", "v", "out"),
    named={"TILE_M": "_DEFAULT_TILE_M", "TILE_N": "_DEFAULT_TILE_N"},
    tensors={
        **{name: tw.Tensor(("B", "H", "S", "D"), "float16") for name in "qkv"},
        "out": tw.Output(("B", "H", "S", "D"), "float16"),
    },
    reference=reference,
    trusted=trusted,
    flops=lambda B, H, S, D, window: 4 * B * H * D * (S * min(S, window) - min(S, window) ** 2 / 2),
    serves=lambda S, D: attention.serves(D) and S % 128 == 0,
    independent=("B", "H"),
    constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
    hints={"occupancy": (1, 2), "num_worker_warps": (None, 8)},
    workloads={
        "mistral": {"B": 1, "H": 32, "S": 8192, "D": 128, "window": 4096},
        "narrow": {"B": 2, "H": 32, "S": 4096, "D": 128, "window": 512},
    },
))  # fmt: skip
