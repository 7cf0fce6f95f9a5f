"""The operations that a question may name without a file, each with its reference in NumPy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NamedOperation:
    """One operation. ``words``: its names. A question must contain all words of a name."""

    name: str
    words: tuple[str, ...]
    source: str


_GELU = "0.5 * {0} * (1 + np.tanh(0.7978845608028654 * ({0} + 0.044715 * {0} ** 3)))"

OPERATIONS: tuple[NamedOperation, ...] = (
    NamedOperation("residual_rms_norm", ("residual rmsnorm", "add rmsnorm", "residual rms norm", "add rms norm"), '''
def residual_rms_norm(x: "[M, N]", residual: "[M, N]", weight: "[N]", eps=1e-6):
    """The sum, for the next layer, and its norm."""
    total = x + residual
    normed = total / np.sqrt((total * total).mean(axis=-1, keepdims=True) + eps) * weight
    return normed, total
'''),
    NamedOperation("gemm_bias_relu", ("gemm bias relu", "matmul bias relu", "linear relu"), '''
def gemm_bias_relu(a: "[M, K]", b: "[K, N]", bias: "[N]"):
    return np.maximum(a @ b + bias, 0)
'''),
    NamedOperation("bias_gelu", ("bias gelu",), f'''
def bias_gelu(x: "[M, N]", bias: "[N]"):
    """GELU of x + bias, in the form with tanh."""
    z = x + bias
    return {_GELU.format("z")}
'''),
    NamedOperation("swiglu", ("swiglu",), '''
def swiglu(gate: "[B, S, N]", up: "[B, S, N]"):
    return gate / (1 + np.exp(-gate)) * up
'''),
    NamedOperation("silu_mul", ("silu mul", "silu multiply"), '''
def silu_mul(x: "[M, N]", factor: "[M, N]"):
    return x / (1 + np.exp(-x)) * factor
'''),
    NamedOperation("gelu", ("gelu",), f'''
def gelu(x: "[M, N]"):
    """GELU in the form with tanh."""
    return {_GELU.format("x")}
'''),
    NamedOperation("cross_entropy", ("cross entropy", "crossentropy"), '''
def cross_entropy(logits: "[M, N]", labels: "int64[M]"):
    """The loss of each row, not their mean."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=-1)) - shifted[np.arange(logits.shape[0]), labels]
'''),
    NamedOperation("logsumexp", ("logsumexp", "log sum exp"), '''
def logsumexp(x: "[M, N]"):
    largest = x.max(axis=-1, keepdims=True)
    return (largest + np.log(np.exp(x - largest).sum(axis=-1, keepdims=True)))[:, 0]
'''),
    NamedOperation("softmax", ("softmax",), '''
def softmax(x: "[M, N]"):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
'''),
    NamedOperation("rms_norm", ("rmsnorm", "rms norm"), '''
def rms_norm(x: "[M, N]", weight: "[N]", eps=1e-6):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
'''),
    NamedOperation("layer_norm", ("layernorm", "layer norm"), '''
def layer_norm(x: "[M, N]", weight: "[N]", bias: "[N]", eps=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * weight + bias
'''),
    NamedOperation("residual_add", ("residual add", "residual addition", "bias residual"), '''
def residual_add(x: "[M, N]", bias: "[N]", residual: "[M, N]"):
    """The end of a block whose dropout is off."""
    return x + bias + residual
'''),
)  # fmt: skip


def operation_in(question: str) -> NamedOperation | None:
    """Returns the operation that a question names. Operations with more words are tried first."""
    words = set(re.findall(r"[a-z0-9]+", question.lower()))
    joined = "".join(re.findall(r"[a-z0-9]+", question.lower()))
    for operation in OPERATIONS:
        for phrase in operation.words:
            if set(phrase.split()) <= words or (" " not in phrase and phrase in joined):
                return operation
    return None


def by_name() -> Mapping[str, NamedOperation]:
    return {each.name: each for each in OPERATIONS}
