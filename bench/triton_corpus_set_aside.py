"""The operations of the files that were set aside, and the same in float64. Written after the translator was fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton_corpus_cases import FLA, LIGER, CorpusCase, labels, layer, norm_inputs, normal, one, rms, sparse


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    return x + (rounded - x).detach()


def quantised(x: Tensor) -> Tensor:
    scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp_min(1e-5)
    return straight_through(x, (x * scale).round().clamp(-128, 127) / scale)


def quantised_weight(w: Tensor) -> Tensor:
    scale = 1.0 / w.abs().mean().clamp_min(1e-5)
    return straight_through(w, (w * scale).round().clamp(-1, 1) / scale)


def quant_linear(is_rms: bool) -> Any:
    def reference(x: Tensor, w: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = (rms if is_rms else layer)(x, 1e-6) * w + b
        return F.linear(quantised(y), quantised_weight(weight), bias)

    return reference


def causal_softmax(scores: Tensor, weight: Tensor, bias: Tensor, is_sparse: bool) -> Tensor:
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    masked = scores.masked_fill(hidden, -1e9)
    probabilities = sparse(masked) if is_sparse else masked.softmax(-1)
    return F.conv2d(probabilities, weight, bias, padding=1).masked_fill(hidden, 0)


def moe(x: Tensor, up: Tensor, down: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    rows = []
    for token in range(x.shape[0]):
        total = torch.zeros_like(x[0])
        for slot in range(index.shape[1]):
            expert = int(index[token, slot])
            gate, value = (up[expert] @ x[token]).chunk(2)
            total = total + weights[token, slot] * (down[expert] @ (F.silu(gate) * value))
        rows.append(total)
    return torch.stack(rows)


def moe_inputs() -> Sequence[Tensor]:
    index = torch.stack([torch.randperm(4)[:2] for _ in range(20)]).to(torch.int32)
    return normal(20, 64), normal(4, 64, 64) / 8, normal(4, 64, 32) / 6, index, torch.rand(20, 2)


def sinkhorn(logits: Tensor, times: int, eps: float) -> Tensor:
    mat = logits.softmax(-1) + eps
    mat = mat / (mat.sum(-2, keepdim=True) + eps)
    for _ in range(times - 1):
        mat = mat / (mat.sum(-1, keepdim=True) + eps)
        mat = mat / (mat.sum(-2, keepdim=True) + eps)
    return mat


def coefficients(x: Tensor, phi: Tensor, b: Tensor, pre: Tensor, post: Tensor, res: Tensor) -> tuple[Tensor, ...]:
    flat = x.flatten(-2)
    mix = (flat @ phi) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    first, second, third = mix.split([4, 4, 16], -1)
    logits = (third * res + b[8:]).unflatten(-1, (4, 4))
    return (first * pre + b[:4]).sigmoid() + 1e-3, 2 * (second * post + b[4:8]).sigmoid(), sinkhorn(logits, 5, 1e-6)


class Sinkhorn(torch.autograd.Function):
    """The library's backward pass without a history, which it takes if the forward pass kept none."""

    @staticmethod
    def forward(ctx: Any, module: Any, mix: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(mix)
        logits = mix[:, 8:].unflatten(-1, (4, 4))
        return sinkhorn(logits, 5, 1e-6)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (mix,) = ctx.saved_tensors
        grads = ctx.module.mhc_sinkhorn_bwd(
            mix, torch.zeros(24), torch.ones(()), grad.contiguous(), tmax=5, sinkhorn_eps=1e-6
        )
        return None, torch.cat([torch.zeros(mix.shape[0], 8), grads.flatten(-2)], -1)


def dyt(m: Any, *inputs: Tensor) -> Tensor:
    """The library counts the GPU's multiprocessors only on a device that it knows."""
    m.infer_device = lambda: "cuda"
    return m.LigerDyTFunction.apply(*inputs)


def kl_inputs(log: bool) -> Sequence[Tensor]:
    return normal(5, 100).log_softmax(-1), normal(5, 100).log_softmax(-1) if log else normal(5, 100).softmax(-1)


def scalar() -> Tensor:
    return normal(1)[0]


QUANT = FLA + "norm/layernorm_quant.py"
CASES = [
    *(
        CorpusCase(
            FLA + "norm/l2norm.py", one(6, width), lambda m, x: m.l2norm(x),
            lambda x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6),
        )
        for width in (100, 600)
    ),
    *(
        CorpusCase(
            QUANT, lambda: (*norm_inputs(100, False)(), normal(24, 100), normal(24)),
            lambda m, x, w, b, weight, bias, is_rms=is_rms: m.LayerNormLinearQuantFunction.apply(
                x, w, b, weight, bias, None, 1e-6, False, False, is_rms
            ),
            quant_linear(is_rms), tolerance=1e-4,
        )
        for is_rms in (False, True)
    ),
    CorpusCase(
        LIGER + "dyt.py", lambda: (normal(6, 100), normal(1), normal(100), normal(100)),
        dyt, lambda x, a, g, b: g * torch.tanh(a * x) + b,
    ),
    CorpusCase(
        LIGER + "fused_add_rms_norm.py", lambda: (normal(7, 100), normal(7, 100), normal(100)),
        lambda m, *a: m.LigerFusedAddRMSNormFunction.apply(*a, 1e-6, 1.0, "gemma", False),
        lambda x, r, w: (rms(x + r, 1e-6) * (1 + w), x + r),
    ),
    CorpusCase(
        LIGER + "fused_moe_kernels.py", moe_inputs,
        lambda m, *a: __import__("liger_kernel.ops.fused_moe", fromlist=["x"]).LigerFusedMoEFunction.apply(*a), moe,
        tolerance=3e-3,
    ),
    CorpusCase(
        LIGER + "group_norm.py", lambda: (normal(3, 8, 30), normal(8), normal(8)),
        lambda m, x, w, b: m.LigerGroupNormFunction.apply(x, w, b, 8, 2, 1e-5),
        lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5),
    ),
    *(
        CorpusCase(
            LIGER + "kl_div.py", lambda log=log: kl_inputs(log),
            lambda m, x, y, log=log, how=how: m.LigerKLDivLossFunction.apply(x, y, how, log),
            lambda x, y, log=log, how=how: F.kl_div(x, y, reduction=how, log_target=log), without=(1,),
        )
        for log, how in ((False, "batchmean"), (True, "none"))
    ),
    CorpusCase(
        LIGER + "mhc.py",
        lambda: (normal(3, 5, 4, 32), normal(128, 24) / 8, normal(24), scalar(), scalar(), scalar()),
        lambda m, *a: m.LigerMHCCoeffsFunction.apply(*a, True, 5, 1e-6, 1e-3, 1e-6, 2.0), coefficients,
        tolerance=3e-3,  # its product is of tf32
    ),
    CorpusCase(
        LIGER + "mhc.py", one(6, 24), lambda m, mix: Sinkhorn.apply(m, mix),
        lambda mix: sinkhorn(mix[:, 8:].unflatten(-1, (4, 4)), 5, 1e-6), tolerance=2e-4,
    ),
    CorpusCase(
        LIGER + "mhc.py", lambda: (normal(3, 5, 4, 32), normal(3, 5, 4)),
        lambda m, x, h: m.LigerMHCPreFunction.apply(x, h), lambda x, h: (x * h[..., None]).sum(-2),
    ),
    CorpusCase(
        LIGER + "mhc.py", lambda: (normal(3, 5, 4, 32), normal(3, 5, 32), normal(3, 5, 4), normal(3, 5, 4, 4)),
        lambda m, *a: m.LigerMHCPostResFunction.apply(*a),
        lambda x, f, post, res: f[..., None, :] * post[..., None] + res @ x,
    ),
    *(
        CorpusCase(
            LIGER + "multi_token_attention.py", lambda: (normal(2, 3, 20, 20), normal(3, 3, 3, 3), normal(3)),
            lambda m, s, w, b, is_sparse=is_sparse: m.LigerMultiTokenAttentionFunction.apply(
                s, w, b, 1, 1, 1, 1, is_sparse),
            lambda s, w, b, is_sparse=is_sparse: causal_softmax(s, w, b, is_sparse),
        )
        for is_sparse in (False, True)
    ),
    CorpusCase(
        LIGER + "relu_squared.py", one(5, 100), lambda m, x: m.LigerReLUSquaredFunction.apply(x),
        lambda x: F.relu(x).square(),
    ),
    CorpusCase(
        LIGER + "softmax.py", one(5, 100), lambda m, x: m.LigerSoftmaxFunction.apply(x), lambda x: x.softmax(-1)
    ),
    *(
        CorpusCase(
            LIGER + "tvd.py", lambda: (normal(5, 100).softmax(-1), normal(5, 100).softmax(-1), labels(5, 100)),
            lambda m, p, q, t, how=how: m.LigerTVDLossFunction.apply(p, q, t, how, -100),
            lambda p, q, t, how=how: tvd_of(p, q, t, how), without=(1,),
        )
        for how in ("sum", "none")
    ),
]  # fmt: skip


def tvd_of(p: Tensor, q: Tensor, target: Tensor, how: str) -> Tensor:
    found = 0.5 * (p - q).abs() * (target != -100)[:, None]
    return found.sum() if how == "sum" else found
