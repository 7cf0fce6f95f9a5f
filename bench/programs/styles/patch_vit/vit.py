"""A small vision transformer with a hand-written trainer in the style of Lightning."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    image: int = 32
    patch: int = 8
    dim: int = 96
    depth: int = 3
    heads: int = 4
    classes: int = 10
    batch: int = 16
    steps: int = 24
    lr: float = 3e-4
    ema: float = 0.99


class Patches(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.p = cfg.patch
        self.proj = nn.Linear(3 * cfg.patch * cfg.patch, cfg.dim)

    def forward(self, img):
        b, c, h, w = img.shape
        rows = []
        for i in range(0, h, self.p):
            for j in range(0, w, self.p):
                rows.append(img[:, :, i:i + self.p, j:j + self.p].reshape(b, -1))
        return self.proj(torch.stack(rows, dim=1))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        attn = torch.softmax(attn, dim=-1)
        y = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class QuickGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.erf(x / 2.0 ** 0.5))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n1 = nn.LayerNorm(cfg.dim)
        self.attn = Attention(cfg.dim, cfg.heads)
        self.n2 = nn.LayerNorm(cfg.dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), QuickGELU(), nn.Linear(4 * cfg.dim, cfg.dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        n = (cfg.image // cfg.patch) ** 2
        self.patches = Patches(cfg)
        self.cls = nn.Parameter(torch.zeros(1, 1, cfg.dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, cfg.dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(cfg) for _ in range(cfg.depth)])
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.classes)

    def forward(self, img):
        x = self.patches(img)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class Module(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.net = ViT(cfg)

    def training_step(self, batch):
        img, target = batch
        logits = self.net(img)
        return {"loss": F.cross_entropy(logits, target), "acc": (logits.argmax(1) == target).float().mean()}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.cfg.lr, weight_decay=0.05)


class Trainer:
    def __init__(self, module, cfg):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.module = module.to(self.device)
        self.cfg = cfg
        self.history = {"loss": [], "acc": []}
        self.shadow = {k: v.detach().clone() for k, v in module.state_dict().items()}

    def log(self, out):
        for key, value in out.items():
            self.history[key].append(value.detach().cpu().item())

    def update_shadow(self):
        for name, value in self.module.state_dict().items():
            self.shadow[name] = self.cfg.ema * self.shadow[name] + (1 - self.cfg.ema) * value.detach()

    def fit(self, batches):
        optimizer = self.module.configure_optimizers()
        self.module.train()
        for step, batch in enumerate(batches):
            batch = [t.to(self.device) for t in batch]
            out = self.module.training_step(batch)
            optimizer.zero_grad()
            out["loss"].backward()
            optimizer.step()
            self.update_shadow()
            self.log(out)
            if step % 8 == 0:
                recent = self.history["loss"][-8:]
                print(f"step {step:3d} loss {sum(recent) / len(recent):.4f}")


def synthetic(cfg):
    gen = torch.Generator().manual_seed(11)
    for _ in range(cfg.steps):
        target = torch.randint(0, cfg.classes, (cfg.batch,), generator=gen)
        img = torch.randn(cfg.batch, 3, cfg.image, cfg.image, generator=gen)
        yield img + target.view(-1, 1, 1, 1) * 0.1, target


if __name__ == "__main__":
    torch.manual_seed(2)
    cfg = Config()
    Trainer(Module(cfg), cfg).fit(synthetic(cfg))
