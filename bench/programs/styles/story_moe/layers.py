import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        norm = x.pow(2).mean(-1, keepdim=True).add(self.eps).rsqrt()
        return x * norm * self.weight


def rotary(x):
    # x: (batch, heads, time, head_dim)
    half = x.shape[-1] // 2
    freqs = 1.0 / (10000 ** (torch.arange(half).float() / half))
    angles = torch.outer(torch.arange(x.shape[2]).float(), freqs).to(x.device)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        shape = (b, t, self.heads, d // self.heads)
        q = rotary(self.q(x).view(shape).transpose(1, 2))
        k = rotary(self.k(x).view(shape).transpose(1, 2))
        v = self.v(x).view(shape).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Experts(nn.Module):
    def __init__(self, dim, n_experts, top=2):
        super().__init__()
        self.top = top
        self.n_experts = n_experts
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.up = nn.ModuleList([nn.Linear(dim, 2 * dim) for _ in range(n_experts)])
        self.down = nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(n_experts)])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = torch.softmax(self.gate(flat), dim=-1).topk(self.top, dim=-1)
        out = torch.zeros_like(flat)
        for e in range(self.n_experts):
            rows, slot = torch.where(chosen == e)
            if rows.numel() == 0:
                continue
            y = self.down[e](F.silu(self.up[e](flat[rows])))
            out = out.index_add(0, rows, y * weight[rows, slot].unsqueeze(1))
        return out.view_as(x)
