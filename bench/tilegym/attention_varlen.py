"""TileGym's attention for sequences of different lengths (`tilegym.ops.fmha_varlen`), bf16, causal."""

import as_launched
import attention_reference as attention
import numpy as np

import tilewright as tw

module = tw.editable("tilegym.ops.cutile.attention_varlen")


def reference(q, k, v, lengths, lengths_kv):
    """Rows past a sequence's end are zero; all lengths of queries and keys are equal here."""
    out = np.zeros_like(q)
    for batch, length in enumerate(lengths.astype(int)):
        rows = (batch, slice(None), slice(0, length))
        score = q[rows] @ k[rows].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        out[rows] = attention.attend(attention.causal_mask(score), v[rows])
    return out


globals().update(as_launched.tasks(
    "attention_varlen",
    module=module,
    call=lambda ops, q, k, v: ops.fmha_varlen(q, k, v, is_causal=True),
    arrays=("q", "k", "v", "lengths", "lengths_kv", "out"),
    listed="_fmha_varlen_autotune_configs",
    tensors={
        **{name: attention.UNGROUPED[name] for name in "qkv"},
        "lengths": tw.Tensor(("B",), "int32", tw.integers(0, 1)),
        "lengths_kv": tw.Tensor(("B",), "int32", tw.integers(0, 1)),
        "out": attention.UNGROUPED["out"],
    },
    reference=lambda q, k, v: attention.reference(q, k, v, True),
    trusted=lambda q, k, v: attention.trusted(q, k, v, True),
    flops=lambda B, H, S, D: attention.flops(B, H, S, D, True),
    serves=lambda S, D: attention.serves(D) and S % 128 == 0,
    independent=("B", "H"),
    constants={"TILE_M": (64, 128), "TILE_N": (32, 64, 128)},
    hints={"num_ctas": (1,), "occupancy": (1, 2), "num_worker_warps": (None, 8)},
    workloads={
        "causal": {"B": 4, "H": 32, "S": 4096, "D": 128},
    },
))  # fmt: skip
