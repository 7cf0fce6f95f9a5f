"""What the libraries of the corpus compute: for each file its operations, and the same in float64 with torch.

Each case runs an operation forwards and backwards. The files that were set aside have their cases in
`triton_corpus_set_aside`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Outputs = Any


@dataclass(frozen=True)
class CorpusCase:
    """An operation of a file. ``inputs``: makes its tensors; those of floats get gradients. ``op`` takes the file's
    module first. ``tolerance``: relative to the largest number of an output."""

    file: str
    inputs: Callable[[], Sequence[Tensor]]
    op: Callable[..., Outputs]
    reference: Callable[..., Outputs]
    tolerance: float = 2e-5
    gradients: bool = True
    without: tuple[int, ...] = ()
    """Inputs that get no gradient."""

    def module(self) -> Any:
        return importlib.import_module(self.file.removesuffix(".py").replace("/", "."))


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape)


def two(*shape: int) -> Callable[[], Sequence[Tensor]]:
    return lambda: (normal(*shape), normal(*shape))


def one(*shape: int) -> Callable[[], Sequence[Tensor]]:
    return lambda: (normal(*shape),)


LIGER, FLA = "liger_kernel/ops/", "fla/modules/"


def rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def layer(x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=eps)


# fla ------------------------------------------------------------------------------------------------------


def linear(gate: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, y, w, b: F.linear(gate(x) * y, w, b)


def pow_gate(x: Tensor) -> Tensor:
    positive = x.clamp_min(1e-30)
    return torch.where(x > 0, positive ** (3.0 / (positive.sqrt() + 1)), x) * x.sigmoid()


def linear_inputs() -> Sequence[Tensor]:
    return normal(6, 40), normal(6, 40), normal(24, 40), normal(24)


def gated(kind: str, activation: str) -> Callable[..., Tensor]:
    act = {"swish": F.silu, "sigmoid": torch.sigmoid}[activation]
    norm = rms if kind == "rms" else layer
    return lambda x, g, w, b: (norm(x, 1e-6) * w + b) * act(g)


def grouped(x: Tensor, z: Tensor, w: Tensor, b: Tensor, before: bool, size: int, is_rms: bool) -> Tensor:
    x = x if before else x * F.silu(z)
    parts = x.unflatten(-1, (-1, size))
    out = (rms if is_rms else layer)(parts, 1e-6).flatten(-2) * w + b
    return out * F.silu(z) if before else out


ACTIVATIONS = FLA + "activations/ops.py"
GATE = FLA + "norm/fused_norm_gate.py"
NORM = FLA + "norm/layernorm.py"
GROUPED = FLA + "norm/layernorm_gated.py"


def norm_inputs(width: int, gate: bool) -> Callable[[], Sequence[Tensor]]:
    return lambda: (normal(5, width), *([normal(5, width)] if gate else []), normal(width), normal(width))


FLA_CASES = [
    CorpusCase(ACTIVATIONS, one(6, 40), lambda m, x: m.SigmoidFunction.apply(x), torch.sigmoid),
    CorpusCase(ACTIVATIONS, one(6, 40), lambda m, x: m.ELUPlusOneFunction.apply(x), lambda x: F.elu(x) + 1),
    CorpusCase(ACTIVATIONS, one(6, 40), lambda m, x: m.logsigmoid(x, 2.0), lambda x: F.logsigmoid(x) / 2.0),
    CorpusCase(ACTIVATIONS, one(6, 40), lambda m, x: m.SwishFunction.apply(x), F.silu),
    CorpusCase(ACTIVATIONS, two(6, 40), lambda m, x, y: m.SwiGLUFunction.apply(x, y), lambda x, y: F.silu(x) * y),
    CorpusCase(ACTIVATIONS, linear_inputs, lambda m, *a: m.SwiGLULinearFunction.apply(*a), linear(F.silu)),
    CorpusCase(
        ACTIVATIONS, two(6, 40), lambda m, x, y: m.SigmoidGLUFunction.apply(x, y), lambda x, y: x.sigmoid() * y
    ),
    CorpusCase(ACTIVATIONS, linear_inputs, lambda m, *a: m.SigmoidGLULinearFunction.apply(*a), linear(torch.sigmoid)),
    CorpusCase(ACTIVATIONS, two(6, 40), lambda m, x, y: m.powglu(x, y), lambda x, y: pow_gate(x) * y),
    CorpusCase(ACTIVATIONS, linear_inputs, lambda m, *a: m.PowGLULinearFunction.apply(*a, 3.0), linear(pow_gate)),
    *(
        CorpusCase(
            GATE, norm_inputs(width, True),
            lambda m, *a, kind=kind, act=act: getattr(m, f"{kind}_norm_gated")(*a, act, eps=1e-6), gated(kind, act),
        )
        for width, kind, act in ((100, "layer", "swish"), (100, "rms", "sigmoid"), (600, "layer", "sigmoid"),
                                 (600, "rms", "swish"))
    ),
    *(
        CorpusCase(
            NORM, norm_inputs(width, False), lambda m, *a, kind=kind: getattr(m, f"{kind}_norm")(*a, eps=1e-5),
            lambda x, w, b, kind=kind: (rms if kind == "rms" else layer)(x, 1e-5) * w + b,
        )
        for width, kind in ((100, "layer"), (100, "rms"), (600, "layer"), (600, "rms"))
    ),
    *(
        CorpusCase(
            GROUPED, lambda: (normal(5, 64), normal(5, 64), normal(64), normal(64)),
            lambda m, x, z, w, b, before=before, is_rms=is_rms: m.LayerNormFn.apply(
                x, w, b, z, 1e-6, 32, before, is_rms),
            lambda x, z, w, b, before=before, is_rms=is_rms: grouped(x, z, w, b, before, 32, is_rms),
        )
        for before, is_rms in ((True, True), (False, True), (True, False))
    ),
]  # fmt: skip

# Liger ----------------------------------------------------------------------------------------------------


def labels(rows: int, count: int) -> Tensor:
    found = torch.randint(0, count, (rows,))
    found[1] = -100
    return found


def attention_over_depth(v: Tensor, query: Tensor, norm: Tensor) -> Tensor:
    weights = torch.einsum("nbtd,d->nbt", rms(v, 1e-6) * norm, query).softmax(0)
    return torch.einsum("nbt,nbtd->btd", weights, v)


def smoothed(x: Tensor, target: Tensor) -> Tensor:
    x = 30 * torch.tanh(x / 30)
    loss = F.cross_entropy(x, target, label_smoothing=0.1)
    seen = target != -100
    return loss + 1e-3 * (x.logsumexp(-1)[seen] ** 2).mean()


def tvd(student: Tensor, teacher: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    distance = 0.5 * (student.softmax(-1) - teacher.softmax(-1)).abs().sum(-1)
    return F.cross_entropy(student, target, reduction="none"), distance * (target != -100)


def divergence(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.kl_div((x @ weight.T / 2.0).log_softmax(-1), target, reduction="batchmean")


def neighbours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[2]
    far = (torch.arange(length)[:, None] - torch.arange(length)[None, :]).abs()
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    return scores.masked_fill(far > 3, float("-inf")).softmax(-1) @ v


def grpo(logits: Tensor, old: Tensor, reference: Tensor, ids: Tensor, advantages: Tensor, sequence: bool) -> Tensor:
    chosen = (logits[:, :-1] / 0.9).log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    ratio = chosen - old
    first = (ratio.mean(-1, keepdim=True) if sequence else ratio).exp()
    second = first.clamp(1 - 0.2, 1 + 0.4)
    loss = -torch.min(first * advantages[:, None], second * advantages[:, None])
    gap = reference - chosen
    return (loss + 0.04 * (gap.exp() - gap - 1)).mean(-1).mean()


def grpo_inputs() -> Sequence[Tensor]:
    logits = normal(2, 6, 50)
    ids = torch.randint(0, 50, (2, 5))
    near = (logits[:, :-1] / 0.9).log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    return logits, near + 0.1 * normal(2, 5), near + 0.1 * normal(2, 5), ids, normal(2)


def grpo_op(level: str) -> Callable[..., Tensor]:
    return lambda m, logits, old, reference, ids, advantages: m.GrpoLossFunction.apply(
        logits, old, reference, ids, advantages, None, 0.9, 0.04, 0.2, 0.4, False, "grpo", None, True, level
    )[0]


def jensen(x: Tensor, y: Tensor, beta: float) -> Tensor:
    middle = (beta * y.exp() + (1 - beta) * x.exp()).log()
    if beta == 0:
        return F.kl_div(x, y, reduction="batchmean", log_target=True)
    first = F.kl_div(middle, y, reduction="batchmean", log_target=True)
    return beta * first + (1 - beta) * F.kl_div(middle, x, reduction="batchmean", log_target=True)


def complex_rope(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, ...]:
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]

    def apply(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)

    return apply(q), apply(k)


def half_rope(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * c + torch.cat([-second, first], -1) * s


def rope(q: Tensor, k: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    return half_rope(q, c[:, None], s[:, None]), half_rope(k, c[:, None], s[:, None])


def angles_of(*shape: int) -> tuple[Tensor, Tensor]:
    angles = normal(*shape).repeat(*[1] * (len(shape) - 1), 2)
    return angles.cos(), angles.sin()


def sections(c: Tensor) -> Tensor:
    parts = c.split([4, 6, 6] * 2, -1)
    return torch.cat([part[at % 3] for at, part in enumerate(parts)], -1)


def mrope(q: Tensor, k: Tensor, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    return rope(q, k, sections(c), sections(s))


def poly(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return w[0] * rms(x**3, 1e-6) + w[1] * rms(x**2, 1e-6) + w[2] * rms(x, 1e-6) + b


def sparse(x: Tensor) -> Tensor:
    values, _ = x.sort(-1, descending=True)
    total, count = values.cumsum(-1) - 1, torch.arange(1, x.shape[-1] + 1)
    size = (values * count > total).sum(-1, keepdim=True)
    return (x - total.gather(-1, size - 1) / size).clamp_min(0)


def geglu(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a, approximate="tanh") * b


def tiled(m: Any, a: Tensor, b: Tensor) -> Tensor:
    """The kernels for Blackwell, which the library takes there for wide rows."""
    m._should_tile = lambda n: True
    return m.LigerSiLUMulFunction.apply(a, b)


def rotary(m: Any, q: Tensor, k: Tensor, angles: Tensor) -> Outputs:
    turn = torch.polar(torch.ones_like(angles), angles).detach()
    return m.LigerLlama4RopeFunction.apply(q.clone(), k.clone(), turn)


def packed(m: Any, a: Tensor, b: Tensor) -> Tensor:
    return m.matmul(a.to(torch.int8), m.pack_weights(b.to(torch.int32).clone()))


def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def mlp_inputs() -> Sequence[Tensor]:
    return normal(2, 40, 64), normal(48, 64) / 8, normal(48, 64) / 8, normal(64, 48) / 8


LIGER_CASES = [
    CorpusCase(
        LIGER + "attn_res.py", lambda: (normal(4, 2, 3, 40), normal(40), normal(40)),
        lambda m, *a: m.LigerAttnResFunction.apply(*a, 1e-6), attention_over_depth,
    ),
    CorpusCase(
        LIGER + "cross_entropy.py", lambda: (normal(6, 300), labels(6, 300)),
        lambda m, x, t: m.LigerCrossEntropyFunction.apply(x * 1, t, None, -100, 1e-3, 0.1, "mean", 30.0)[0] * 1.5,
        lambda x, t: smoothed(x, t) * 1.5,
    ),
    CorpusCase(
        LIGER + "utils.py", lambda: (normal(6, 300), labels(6, 300)),
        lambda m, x, t: importlib.import_module("liger_kernel.ops.cross_entropy")
        .LigerCrossEntropyFunction.apply(x * 1, t, None)[0] * 2.5,
        lambda x, t: F.cross_entropy(x, t) * 2.5,
    ),
    CorpusCase(
        LIGER + "experimental/embedding.py", lambda: (normal(20, 40), torch.randint(0, 20, (3, 7))),
        lambda m, e, i: m.LigerEmbeddingFunction.apply(e, i), lambda e, i: F.embedding(i, e),
    ),
    CorpusCase(
        LIGER + "experimental/mm_int8int2.py",
        lambda: (torch.randint(-128, 128, (40, 256)).float(), torch.randint(-1, 2, (256, 48)).float()),
        packed, lambda a, b: a @ b, gradients=False,
    ),
    CorpusCase(
        LIGER + "fused_ce_tvd.py", lambda: (normal(5, 300), normal(5, 300), labels(5, 300)),
        lambda m, *a: m.LigerFusedCETVDFunction.apply(*a), tvd, without=(1,),
    ),
    CorpusCase(
        LIGER + "fused_linear_kl_div.py", lambda: (normal(6, 32), normal(100, 32), normal(6, 100).softmax(-1)),
        lambda m, *a: m.LigerFusedLinearKLDivFunction.apply(*a, None, "batchmean", -100, 2.0) * 1.5,
        lambda *a: divergence(*a) * 1.5, without=(2,),
    ),
    CorpusCase(
        LIGER + "fused_neighborhood_attention.py", lambda: [normal(2, 2, 24, 16) for _ in range(3)],
        lambda m, *a: m.LigerFusedNeighborhoodAttentionFunction.apply(*a, 7, 1, None), neighbours, tolerance=3e-3,
    ),
    CorpusCase(LIGER + "geglu.py", two(5, 100), lambda m, a, b: m.LigerGELUMulFunction.apply(a * 1, b * 1), geglu),
    CorpusCase(
        LIGER + "grpo_loss.py", grpo_inputs, grpo_op("token"), lambda *a: grpo(*a, sequence=False), without=(1, 2, 4)
    ),
    CorpusCase(
        LIGER + "grpo_loss.py", grpo_inputs, grpo_op("sequence"), lambda *a: grpo(*a, sequence=True), without=(1, 2, 4)
    ),
    *(
        CorpusCase(
            LIGER + "jsd.py", lambda: (normal(5, 100).log_softmax(-1), normal(5, 100).log_softmax(-1)),
            lambda m, x, y, beta=beta: m.LigerJSDFunction.apply(x, y, None, beta),
            lambda x, y, beta=beta: jensen(x, y, beta), without=(1,),
        )
        for beta in (0.0, 0.5)
    ),
    CorpusCase(
        LIGER + "layer_norm.py", lambda: (normal(7, 100), normal(100), normal(100)),
        lambda m, *a: m.LigerLayerNormFunction.apply(*a, 1e-5), lambda x, w, b: layer(x, 1e-5) * w + b,
    ),
    CorpusCase(
        LIGER + "llama4_rope.py", lambda: (normal(2, 5, 3, 32), normal(2, 5, 1, 32), normal(5, 16)), rotary,
        complex_rope, without=(2,),
    ),
    CorpusCase(
        LIGER + "mlp.py", mlp_inputs, lambda m, *a: m.LigerMLPFunction.apply(*a), mlp, tolerance=5e-3
    ),
    CorpusCase(
        LIGER + "mlp.py", mlp_inputs, lambda m, *a: m.LigerMLPFunction.apply(*[x.detach() for x in a]), mlp,
        tolerance=5e-3, gradients=False,
    ),
    *(
        CorpusCase(
            LIGER + "modulated_rms_norm.py",
            lambda rows=rows: (normal(2, 6, 100), normal(100), normal(rows, 100), normal(rows, 100)),
            lambda m, *a, how=how: m.LigerModulatedRMSNormFunction.apply(*a, 1e-6, 0.0, how, False),
            lambda x, w, scale, shift: (1 + scale[:, None]) * rms(x, 1e-6) * w + shift[:, None],
        )
        for rows, how in ((2, "llama"), (1, "gemma"))
    ),
    CorpusCase(
        LIGER + "poly_norm.py", lambda: (normal(5, 100), normal(3), normal(1)[0]),
        lambda m, *a: m.LigerPolyNormFunction.apply(*a, 1e-6, False), poly,
    ),
    CorpusCase(
        LIGER + "qwen2vl_mrope.py", lambda: (normal(2, 4, 5, 32), normal(2, 2, 5, 32), *angles_of(3, 2, 5, 16)),
        lambda m, q, k, c, s: m.LigerQwen2VLMRopeFunction.apply(q * 1, k * 1, c.detach(), s.detach(), [4, 6, 6]), mrope,
        without=(2, 3),
    ),
    *(
        CorpusCase(
            LIGER + "rms_norm.py", lambda rows=rows: (normal(rows, 100), normal(100)),
            lambda m, x, w, mode=mode: m.LigerRMSNormFunction.apply(x, w, 1e-6, 1.0, "gemma", False, mode),
            lambda x, w: rms(x, 1e-6) * (1 + w),
        )
        for rows, mode in ((7, True), (4096 * 8, None))
    ),
    CorpusCase(
        LIGER + "rope.py", lambda: (normal(2, 4, 5, 32), normal(2, 2, 5, 32), *angles_of(2, 5, 16)),
        lambda m, q, k, c, s: m.LigerRopeFunction.apply(q * 1, k * 1, c.detach(), s.detach()), rope, without=(2, 3),
    ),
    CorpusCase(
        LIGER + "sparsemax.py", one(5, 100), lambda m, x: m.LigerSparsemaxFunction.apply(x, -1), sparse
    ),
    CorpusCase(
        LIGER + "swiglu.py", two(5, 100), lambda m, a, b: m.LigerSiLUMulFunction.apply(a * 1, b * 1),
        lambda a, b: F.silu(a) * b,
    ),
    CorpusCase(
        LIGER + "swiglu.py", two(5, 100), lambda m, a, b: tiled(m, a * 1, b * 1), lambda a, b: F.silu(a) * b
    ),
    CorpusCase(
        LIGER + "swiglu.py", one(5, 200), lambda m, y: m.LigerFusedGateUpSiLUMulFunction.apply(y, False),
        lambda y: F.silu(y[:, :100]) * y[:, 100:],
    ),
    CorpusCase(
        LIGER + "vocab_parallel_cross_entropy.py", lambda: (normal(3, 2, 100), torch.randint(0, 100, (3, 2))),
        lambda m, x, t: m.LigerVocabParallelCEFunction.apply(x, t, None, -100, 0.0, "megatron", "mean"),
        lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(), reduction="none").view(3, 2),
    ),
]  # fmt: skip

CASES = (*FLA_CASES, *LIGER_CASES)
