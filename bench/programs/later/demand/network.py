import torch
import torch.nn.functional as F
from torch import nn

from config import ModelConfig


class Recurrence(nn.Module):
    """A gated recurrent layer over the hours of the history."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], self.width)
        states = []
        for hour in range(x.shape[1]):
            state = self.cell(x[:, hour], state)
            states.append(state)
        return torch.stack(states, dim=1)


class RecencyAttention(nn.Module):
    """Self-attention that prefers recent hours and the same hour on earlier days."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def recency_bias(self, length: int, device: torch.device) -> torch.Tensor:
        bias = torch.zeros(length, length)
        for query in range(length):
            for key in range(length):
                distance = abs(query - key)
                bias[query, key] = -0.02 * distance
                if distance and distance % 24 == 0:
                    bias[query, key] += 0.5
        return bias.to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        bias = self.recency_bias(length, x.device)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = RecencyAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Forecaster(nn.Module):
    """Quantiles of the load of each hour of the horizon, [batch, horizon, quantiles]."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.embed = nn.Linear(1 + cfg.calendar_features, cfg.width)
        self.recurrence = Recurrence(cfg.width)
        self.blocks = nn.ModuleList(Block(cfg.width, cfg.heads) for _ in range(cfg.blocks))
        self.norm = nn.LayerNorm(cfg.width)
        self.future = nn.Linear(cfg.calendar_features, cfg.width)
        self.head = nn.Sequential(
            nn.Linear(2 * cfg.width, 2 * cfg.width),
            nn.GELU(),
            nn.Linear(2 * cfg.width, len(cfg.quantiles)),
        )

    def forward(self, past, past_calendar, future_calendar):
        x = self.embed(torch.cat([past.unsqueeze(-1), past_calendar], dim=-1))
        x = x + self.recurrence(x)
        for block in self.blocks:
            x = block(x)
        summary = self.norm(x[:, -1]).unsqueeze(1)
        future = self.future(future_calendar)
        return self.head(torch.cat([summary.expand_as(future), future], dim=-1))
