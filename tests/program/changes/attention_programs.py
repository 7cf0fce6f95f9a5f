"""Hand-written attention as people write it, for developing the rewriter, and near misses that it must leave.

A program's call is evaluated with its source's names, `torch`, and random float64 tensors of the given shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent

SHAPES = {"q": (2, 3, 5, 4), "k": (2, 3, 5, 4), "v": (2, 3, 5, 4)}
WIDE = {"x": (2, 6, 12)}
HEAD = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

"""


@dataclass(frozen=True)
class AttentionProgram:
    name: str
    source: str
    call: str = "attention(q, k, v)"
    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: SHAPES)
    says: str = ""
    """What the new text must have."""


def function(name: str, body: str, says: str = "", call: str = "attention(q, k, v)", parameters: str = "q, k, v",
             **inputs: tuple[int, ...]) -> AttentionProgram:  # fmt: skip
    text = "".join(f"    {line}\n" if line else "\n" for line in dedent(body).strip("\n").split("\n"))
    return AttentionProgram(name, f"{HEAD}\ndef attention({parameters}):\n{text}", call, inputs or SHAPES, says)


def layer(name: str, init: str, body: str, says: str = "", call: str = "Layer().double().eval()(x)",
          **inputs: tuple[int, ...]) -> AttentionProgram:  # fmt: skip
    def indented(text: str) -> str:
        return "".join(f"        {line}\n" if line else "\n" for line in dedent(text).strip("\n").split("\n"))

    source = (
        f"{HEAD}\nclass Layer(nn.Module):\n    def __init__(self, dim=12, heads=3):\n        super().__init__()\n"
        f"        self.heads, self.head_dim = heads, dim // heads\n        self.qkv = nn.Linear(dim, 3 * dim)\n"
        f"{indented(init)}\n    def forward(self, x):\n        b, t, d = x.shape\n"
        "        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)\n"
        f"{indented(body)}"
    )
    return AttentionProgram(name, source, call, inputs or WIDE, says)


RIGHT = (
    function("one line", "return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v",
             "F.scaled_dot_product_attention(q, k, v, scale=1.0 / math.sqrt(q.size(-1)))"),
    function("no scale", "return (q @ k.mT).softmax(-1) @ v", "scale=1.0)"),
    function("scale before the product", """
        d = q.shape[-1]
        w = F.softmax(torch.matmul(q * d ** -0.5, k.transpose(2, 3)), dim=-1)
        return torch.matmul(w, v)
    """),
    function("scale in front", "return torch.softmax(0.5 * (q @ k.transpose(-1, -2)), -1) @ v", "scale=0.5)"),
    function("scale in place", """
        s = torch.matmul(q, k.transpose(-1, -2))
        s /= math.sqrt(k.size(-1))  # as in the paper
        # the weights
        p = F.softmax(s, dim=-1)
        out = torch.matmul(p, v)
        return out
    """, "        # the weights\n".replace("        ", "    ")),
    function("causal, made here", """
        t = q.size(-2)
        mask = torch.tril(torch.ones(t, t, device=q.device))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(mask == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return att @ v
    """, "is_causal=True, scale="),
    function("causal, blocked above", """
        n = q.shape[-2]
        s = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        s.masked_fill_(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.finfo(s.dtype).max)
        return torch.einsum("bhij,bhjd->bhid", s.softmax(dim=-1), v)
    """.replace("-torch.finfo(s.dtype).max", "torch.finfo(s.dtype).min"), "is_causal=True"),
    function("additive causal", """
        L = q.size(2)
        bias = torch.triu(torch.full((L, L), float("-inf")), diagonal=1)
        return ((q @ k.transpose(-2, -1)) / 2.0 + bias).softmax(-1) @ v
    """, "is_causal=True"),
    function("padding where it is given", """
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return scores.softmax(dim=-1) @ v
    """, "attn_mask=(mask != 0) if mask is not None else None", "attention(q, k, v, torch.ones(5, 5).tril())",
             "q, k, v, mask=None"),
    function("padding with a finite fill value", """
        scores = torch.matmul(q, k.transpose(-2, -1)) * 0.5
        scores = scores.masked_fill(~mask, -1e9)
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights, v)
    """, "q.new_zeros(()).masked_fill(~mask, -1e9)", "attention(q, k, v, torch.ones(5, 5).tril().bool())",
             "q, k, v, mask"),
    function("learned bias", """
        s = (q * 0.5) @ k.transpose(-2, -1)
        s = s + bias
        return s.softmax(-1) @ v
    """, "attn_mask=bias.to(v.dtype)", "attention(q, k, v, b)", "q, k, v, bias", **SHAPES, b=(3, 5, 5)),
    function("bias and causal", """
        t = q.size(-2)
        s = q @ k.transpose(-2, -1) * 0.5 + bias
        s = s.masked_fill(torch.triu(torch.ones(t, t), 1).bool(), -math.inf)
        return s.softmax(-1) @ v
    """, '.masked_fill(torch.triu(torch.ones(t, t), 1).bool(), float("-inf"))', "attention(q, k, v, b)",
             "q, k, v, bias", **SHAPES, b=(3, 5, 5)),
    function("bmm", """
        attn = torch.bmm(q, k.transpose(1, 2))
        attn = F.softmax(attn / np.power(4, 0.5), dim=2)
        return torch.bmm(attn, v)
    """.replace("np.power(4, 0.5)", "math.pow(4, 0.5)"), q=(2, 5, 4), k=(2, 7, 4), v=(2, 7, 6)),
    function("two dimensions", "return F.softmax(q @ k.T * 0.3, dim=-1) @ v", q=(5, 4), k=(7, 4), v=(7, 6)),
    function("heads behind", """
        w = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / 2, dim=-1)
        return torch.einsum("bhqk,bkhd->bqhd", w, v)
    """, "v.transpose(1, 2),\n        scale=1.0 / 2,\n    ).transpose(1, 2)", q=(2, 5, 3, 4), k=(2, 7, 3, 4),
             v=(2, 7, 3, 6)),
    function("keys transposed before", """
        kt = k.permute(0, 1, 3, 2)
        scores = torch.matmul(q, kt).div(2.0)
        return F.softmax(scores, dim=3).matmul(v)
    """, "kt.transpose(-2, -1)"),
    function("where", "return torch.where(keep, q @ k.mT, -1e30).softmax(-1) @ v",
             call="attention(q, k, v, torch.ones(5, 5).tril().bool())", parameters="q, k, v, keep"),
    layer("dropout layer", "self.drop = nn.Dropout(0.1)\nself.scale = self.head_dim ** -0.5", """
        w = (q @ k.transpose(-2, -1)) * self.scale
        w = w.softmax(dim=-1)
        w = self.drop(w)
        y = (w @ v).transpose(1, 2).reshape(b, t, d)
        return y
    """, "dropout_p=self.drop.p if self.drop.training else 0.0"),
    layer("buffer and dropout function", """
        self.p = 0.2
        self.register_buffer("tril", torch.tril(torch.ones(32, 32, dtype=torch.bool)))
        self.out = nn.Linear(dim, dim)
    """, """
        att = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        att = att.masked_fill(~self.tril[:t, :t], float("-inf"))
        att = F.dropout(F.softmax(att, dim=-1), p=self.p, training=self.training)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(b, t, d)
        return self.out(y)
    """, "dropout_p=self.p if self.training else 0.0"),
    layer("softmax layer, values between", "self.softmax = nn.Softmax(dim=-1)\nself.v2 = nn.Linear(dim, dim)", """
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / self.head_dim ** 0.5
        v = self.v2(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        attention = self.softmax(energy.float()).type_as(q)
        out = torch.matmul(attention, v)
        return out.permute(0, 2, 1, 3).reshape(b, t, d)
    """.replace("energy.float()", "energy")),
)  # fmt: skip
"""Programs that are rewritten: twenty."""

CHANGED_BUFFER = layer("a buffer that is changed", """
    self.register_buffer("tril", torch.tril(torch.ones(8, 8)))
    self.tril[0] = 1
""", """
    s = (q @ k.mT).masked_fill(self.tril[:t, :t] == 0, float("-inf"))
    return s.softmax(-1) @ v
""")  # fmt: skip
"""Its mask is not causal, so the mask itself must be passed on."""

WRONG = (
    function("another axis", "return torch.softmax(q @ k.transpose(-2, -1) * 0.5, dim=-2) @ v", "another axis"),
    function("no axis", "return F.softmax(q @ k.transpose(-2, -1)) @ v", "no axis"),
    function("unknown axis", "return F.softmax(q @ k.transpose(-2, -1), dim=3) @ v", "another axis"),
    function("weights returned", """
        p = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
        return p @ v, p
    """, "also used", "attention(q, k, v)[0]"),
    function("weights used in a loop", """
        out = v
        for _ in range(2):
            p = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
            out = p @ out
        return out + p.sum()
    """, "also used"),
    function("scores in a lambda", """
        s = q @ k.transpose(-2, -1) * 0.5
        out = s.softmax(-1) @ v
        return out + (lambda: s.sum())()
    """, "also used"),
    function("weights renormalised", """
        p = (q @ k.transpose(-2, -1) * 0.5).softmax(-1)
        p = p / p.sum(dim=-2, keepdim=True)
        return p @ v
    """),
    function("scaled after the mask", """
        s = q @ k.transpose(-2, -1) + bias
        return (s / 2.0).softmax(-1) @ v
    """, "after the mask", "attention(q, k, v, torch.ones(5, 5))", "q, k, v, bias"),
    function("a scale that may be a tensor", "return (q @ k.transpose(-2, -1) * scale).softmax(-1) @ v",
             "not known to be a number", "attention(q, k, v, torch.ones(5, 5))", "q, k, v, scale"),
    function("a weak fill value", """
        s = (q @ k.transpose(-2, -1)).masked_fill(mask, -50.0)
        return s.softmax(-1) @ v
    """, "some weight", "attention(q, k, v, torch.ones(5, 5).triu(1).bool())", "q, k, v, mask"),
    function("q bound anew", """
        s = q @ k.transpose(-2, -1)
        q = q + 1
        return s.softmax(-1) @ v + q
    """, "anew"),
    function("q changed in place", """
        s = q.detach() @ k.transpose(-2, -1)
        q.detach().mul_(2)
        return s.softmax(-1) @ v
    """, "may change"),
    function("two products", """
        s = q @ k.transpose(-2, -1) + q @ k.transpose(-2, -1)
        return s.softmax(-1) @ v
    """, "two products"),
    function("keys not transposed", "return (q @ k).softmax(-1) @ v", "not visibly", k=(2, 3, 4, 5), q=(2, 3, 5, 4),
             v=(2, 3, 5, 4)),
    function("dropout of the scores", "return F.dropout(q @ k.mT, 0.0).softmax(-1) @ v"),
    function("mask from the scores", """
        s = q @ k.transpose(-2, -1)
        top = s.topk(2, dim=-1).values[..., -1:]
        s = s.masked_fill(s < top, float("-inf"))
        return s.softmax(-1) @ v
    """),
    function("softmax of another library", """
        softmax = lambda t, dim: t / t.sum(dim, keepdim=True)
        return softmax(q @ k.transpose(-2, -1), -1) @ v
    """),
    function("second derivatives", """
        out = (q @ k.mT).softmax(-1) @ v
        (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
        return g
    """, "second derivatives"),
    layer("a scale that is set from outside", "self.scale = 0.5", """
        other = nn.Linear(2, 2)
        other.scale = torch.ones(3, 1, 1)
        return (q @ k.mT * self.scale).softmax(-1) @ v
    """, "not known to be a number"),
    AttentionProgram("a shadowed name", "import torch\nfrom torch.nn.functional import softmax\n\n\n"
                     "def softmax(x, dim):\n    return x\n\n\n"
                     "def attention(q, k, v):\n    return softmax(q @ k.transpose(-2, -1), dim=-1) @ v\n"),
    AttentionProgram("no name for torch", "from torch import softmax\n\n\n"
                     "def attention(q, k, v):\n    return softmax(q @ k.transpose(-2, -1), dim=-1) @ v\n",
                     says="does not import"),
)  # fmt: skip
"""Near misses. ``says``: a part of the reason, where there is one."""
