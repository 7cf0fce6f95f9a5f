"""TileGym's multi-head latent attention, prefill (`tilegym.ops.mla`), bf16: position parts beside the heads, causal."""

import as_launched
import attention_reference as attention
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.mla")


def reference(q, qpe, k, kpe, v):
    score = q @ k.swapaxes(-1, -2) + qpe @ kpe.swapaxes(-1, -2)
    return attention.attend(attention.causal_mask(score / np.sqrt(q.shape[-1] + qpe.shape[-1])), v)


def trusted(q, qpe, k, kpe, v):
    import torch

    both = torch.cat((k, kpe.expand(-1, k.shape[1], -1, -1)), dim=-1)
    return torch.nn.functional.scaled_dot_product_attention(torch.cat((q, qpe), dim=-1), both, v, is_causal=True)


globals().update(as_launched.tasks(
    "mla",
    module=module,
    call=lambda ops, q, k, v, qpe, kpe: ops.mla(q, k, v, qpe, kpe, True, None),
    arrays=("q", "qpe", "k", "kpe", "v", "out"),
    listed="_mla_sm90_autotune_configs",
    tensors={
        "q": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
        "qpe": tw.Tensor(("B", "H", "S", "P"), "bfloat16"),
        "k": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
        "kpe": tw.Tensor(("B", 1, "S", "P"), "bfloat16"),
        "v": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
        "out": tw.Output(("B", "H", "S", "D"), "bfloat16"),
    },
    reference=reference,
    trusted=trusted,
    flops=lambda B, H, S, D, P: B * H * S * S * (2 * D + P),
    serves=lambda D, P, S: attention.serves(D) and attention.serves(P) and S % 128 == 0,
    independent=("B", "H"),
    constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
    hints={"num_ctas": (1,), "occupancy": (1, 2), "num_worker_warps": (None, 8)},
    workloads={
        "long": {"B": 1, "H": 64, "S": 4096, "D": 128, "P": 64},
        "batch": {"B": 4, "H": 32, "S": 2048, "D": 128, "P": 64},
    },
))  # fmt: skip
