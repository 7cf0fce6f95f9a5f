"""What the attention tasks share: softmax(Q·Kᵀ / √D)·V, H heads of keys with G queries' heads each."""

import numpy as np

import tilewright as tw

TENSORS = {
    "q": tw.Tensor(("B", "H * G", "S", "D"), "bfloat16"),
    "k": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
    "v": tw.Tensor(("B", "H", "S", "D"), "bfloat16"),
    "out": tw.Output(("B", "H * G", "S", "D"), "bfloat16"),
}
"""H heads of keys, each for G heads of queries."""

UNGROUPED = {name: type(one)(("B", "H", "S", "D"), one.dtype) for name, one in TENSORS.items()}
"""One head of keys for each of queries: the reference can then be computed head by head."""


def attend(score, v):
    """Softmax over the last axis, then the weighted sum; a score of -inf has no weight."""
    part = np.exp(score - score.max(axis=-1, keepdims=True))
    return part @ v / part.sum(axis=-1, keepdims=True)


def causal_mask(score):
    return np.where(np.tri(*score.shape[-2:], dtype=bool), score, -np.inf)


def reference(q, k, v, causal):
    score = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return attend(causal_mask(score) if causal else score, v)


def trusted(q, k, v, causal):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def flops(B, H, S, D, causal):
    return 4 * B * H * S * S * D / (1 + causal)


def serves(D):
    """The head is one tile."""
    return D & (D - 1) == 0 and D >= 16
