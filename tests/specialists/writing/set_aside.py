"""The references of the operations of set_aside_operations.txt, for their test and for a benchmark."""

from __future__ import annotations

SOURCE = """import numpy as np


def mish(x: "[M, N]"):
    softplus = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)
    return x * np.tanh(softplus)


def log_softmax(x: "[M, N]"):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def geglu(gate: "[B, S, F]", up: "[B, S, F]"):
    return 0.5 * gate * (1 + np.tanh(0.7978845608 * (gate + 0.044715 * gate**3))) * up


def l2_normalise(x: "[M, N]"):
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-12)


def masked_softmax(x: "[B, S, T]", mask: "bool[B, S, T]"):
    scores = np.where(mask, x / 8, -1e9)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def gemm_bias_silu_residual(a: "[M, K]", b: "[K, N]", bias: "[N]", residual: "[M, N]"):
    z = a @ b + bias
    return z / (1 + np.exp(-z)) + residual
"""
NAMES = ("mish", "log_softmax", "geglu", "l2_normalise", "masked_softmax", "gemm_bias_silu_residual")
