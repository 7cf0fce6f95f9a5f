import math

import torch
from torch import nn


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        device = time.device
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        return torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)


def swish(x):
    return x * torch.sigmoid(x)


class ResBlock(nn.Module):
    def __init__(self, c_in, c_out, time_dim):
        super().__init__()
        self.norm1 = nn.GroupNorm(8, c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.time = nn.Linear(time_dim, c_out)
        self.norm2 = nn.GroupNorm(8, c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(swish(self.norm1(x)))
        h = h + self.time(swish(emb))[:, :, None, None]
        h = self.conv2(swish(self.norm2(h)))
        return h + self.skip(x)


class UNet(nn.Module):
    def __init__(self, channels=32, time_dim=64):
        super().__init__()
        self.time_mlp = nn.Sequential(SinusoidalPositionEmbeddings(time_dim), nn.Linear(time_dim, time_dim), nn.GELU())
        self.inp = nn.Conv2d(3, channels, 3, padding=1)
        self.down1 = ResBlock(channels, channels, time_dim)
        self.down2 = ResBlock(channels, channels * 2, time_dim)
        self.pool = nn.AvgPool2d(2)
        self.mid = ResBlock(channels * 2, channels * 2, time_dim)
        self.up = nn.Upsample(scale_factor=2)
        self.up1 = ResBlock(channels * 3, channels, time_dim)
        self.out = nn.Conv2d(channels, 3, 1)

    def forward(self, x, t):
        emb = self.time_mlp(t.float())
        x = self.inp(x)
        a = self.down1(x, emb)
        b = self.down2(self.pool(a), emb)
        b = self.mid(b, emb)
        h = torch.cat([self.up(b), a], dim=1)
        return self.out(self.up1(h, emb))
