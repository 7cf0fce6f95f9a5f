"""Train a tiny denoising diffusion model (DDPM) on synthetic 16x16 blobs.

    python diffusion_unet.py [--steps 40]
"""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--timesteps", type=int, default=200)
parser.add_argument("--lr", type=float, default=2e-4)
parser.add_argument("--ema-decay", type=float, default=0.99)
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
np.random.seed(0)


def get_beta_schedule(num_timesteps):
    s = 0.008
    x = np.linspace(0, num_timesteps, num_timesteps + 1)
    alphas_cumprod = np.cos(((x / num_timesteps) + s) / (1 + s) * np.pi * 0.5) ** 2
    alphas_cumprod = alphas_cumprod / alphas_cumprod[0]
    betas = 1 - (alphas_cumprod[1:] / alphas_cumprod[:-1])
    return np.clip(betas, 0, 0.999)


def timestep_embedding(timesteps, dim):
    half = dim // 2
    rows = []
    for t in timesteps:
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=timesteps.device).float() / half)
        a = t.float() * freqs
        rows.append(torch.cat([torch.cos(a), torch.sin(a)]))
    return torch.stack(rows)


class ResnetBlock(nn.Module):
    def __init__(self, in_channels, out_channels, temb_channels, groups=8):
        super().__init__()
        self.groups = groups
        self.norm1_weight = nn.Parameter(torch.ones(in_channels))
        self.norm1_bias = nn.Parameter(torch.zeros(in_channels))
        self.norm2_weight = nn.Parameter(torch.ones(out_channels))
        self.norm2_bias = nn.Parameter(torch.zeros(out_channels))
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(temb_channels, out_channels)
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1) if in_channels != out_channels else nn.Identity()

    def group_norm(self, x, weight, bias):
        b, c, h, w = x.shape
        x = x.view(b, self.groups, c // self.groups * h * w)
        mean = x.mean(dim=-1, keepdim=True)
        var = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + 1e-5)
        x = x.view(b, c, h, w)
        return x * weight.view(1, c, 1, 1) + bias.view(1, c, 1, 1)

    def forward(self, x, temb):
        h = self.group_norm(x, self.norm1_weight, self.norm1_bias)
        h = h * torch.sigmoid(h)
        h = self.conv1(h)
        h = h + self.time_emb_proj(temb)[:, :, None, None]
        h = self.group_norm(h, self.norm2_weight, self.norm2_bias)
        h = h * torch.sigmoid(h)
        return self.shortcut(x) + self.conv2(h)


class AttnBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, channels * 3, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=1)
        q = q.reshape(b, c, h * w).permute(0, 2, 1)
        k = k.reshape(b, c, h * w)
        v = v.reshape(b, c, h * w)
        weight = torch.bmm(q, k) * (int(c) ** (-0.5))
        weight = F.softmax(weight, dim=2)
        out = torch.bmm(v, weight.permute(0, 2, 1)).reshape(b, c, h, w)
        return x + self.proj_out(out)


class UNet(nn.Module):
    def __init__(self, base=32):
        super().__init__()
        self.base = base
        self.temb = nn.Sequential(nn.Linear(base, base * 4), nn.SiLU(), nn.Linear(base * 4, base * 4))
        self.conv_in = nn.Conv2d(1, base, 3, padding=1)
        self.down1 = ResnetBlock(base, base, base * 4)
        self.downsample = nn.Conv2d(base, base * 2, 3, stride=2, padding=1)
        self.mid1 = ResnetBlock(base * 2, base * 2, base * 4)
        self.attn = AttnBlock(base * 2)
        self.mid2 = ResnetBlock(base * 2, base * 2, base * 4)
        self.upsample = nn.ConvTranspose2d(base * 2, base, 4, stride=2, padding=1)
        self.up1 = ResnetBlock(base * 2, base, base * 4)
        self.conv_out = nn.Conv2d(base, 1, 3, padding=1)

    def forward(self, x, t):
        temb = self.temb(timestep_embedding(t, self.base))
        h1 = self.down1(self.conv_in(x), temb)
        h = self.downsample(h1)
        h = self.mid2(self.attn(self.mid1(h, temb)), temb)
        h = self.up1(torch.cat([self.upsample(h), h1], dim=1), temb)
        return self.conv_out(h)


def make_images(n):
    yy, xx = np.mgrid[0:16, 0:16]
    cx, cy = np.random.uniform(3, 13, (2, n, 1, 1))
    return np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 8.0).astype("float32")[:, None] * 2 - 1


images = make_images(1024)
model = UNet().to(device)
ema = {name: p.detach().clone() for name, p in model.named_parameters()}
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

running = 0.0
for step in range(args.steps):
    idx = np.random.randint(0, len(images), args.batch_size)
    x0 = torch.from_numpy(images[idx]).to(device)
    t = torch.from_numpy(np.random.randint(0, args.timesteps, args.batch_size)).to(device)
    noise = torch.from_numpy(np.random.randn(*x0.shape).astype("float32")).to(device)

    betas = torch.tensor(get_beta_schedule(args.timesteps), dtype=torch.float32, device=device)
    alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
    a = alphas_cumprod[t].view(-1, 1, 1, 1)
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise

    pred = model(xt, t)
    loss = F.mse_loss(pred, noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    with torch.no_grad():
        for name, p in model.named_parameters():
            ema[name] = ema[name] * args.ema_decay + p * (1 - args.ema_decay)

    running = 0.9 * running + 0.1 * loss.item()
    if step % 10 == 9:
        print(f"step {step + 1} loss {running:.4f}")

print("ema norm %.3f" % math.sqrt(sum(float((e ** 2).sum()) for e in ema.values())))
