from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

from layers import CausalAttention, Experts, RMSNorm

cfg = SimpleNamespace(vocab=64, dim=64, heads=4, layers=2, experts=4, block=64, batch=8, iters=24, accum=2, lr=1e-3)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = RMSNorm(cfg.dim), RMSNorm(cfg.dim)
        self.attn = CausalAttention(cfg.dim, cfg.heads)
        self.moe = Experts(cfg.dim, cfg.experts)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.moe(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.layers = nn.ModuleList([Layer() for _ in range(cfg.layers)])
        self.norm = RMSNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.tok(idx)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, cfg.vocab), targets.view(-1))


def tokens():
    g = torch.Generator().manual_seed(4)
    walk = torch.randint(-2, 3, (30000,), generator=g).cumsum(0)
    return walk % cfg.vocab


def get_batch(data):
    ix = torch.randint(len(data) - cfg.block - 1, (cfg.batch,))
    x = torch.stack([data[i:i + cfg.block] for i in ix])
    y = torch.stack([data[i + 1:i + 1 + cfg.block] for i in ix])
    return x.to(device), y.to(device)


def estimate(model, data, n=4):
    losses = torch.zeros(n)
    model.eval()
    for k in range(n):
        _, loss = model(*get_batch(data))
        losses[k] = loss.item()
    model.train()
    return losses.mean().item()


torch.manual_seed(99)
data = tokens()
train_data, val_data = data[:27000], data[27000:]
model = LM().to(device)
decay = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=cfg.lr, foreach=False)

for it in range(cfg.iters):
    for group in optimizer.param_groups:
        group["lr"] = cfg.lr * min(1.0, (it + 1) / 8)
    optimizer.zero_grad(set_to_none=False)
    total = 0.0
    for micro in range(cfg.accum):
        _, loss = model(*get_batch(train_data))
        (loss / cfg.accum).backward()
        total += loss.item() / cfg.accum
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"iter {it} loss {total:.4f} norm {norm:.3f}")
    if it % 12 == 11:
        print("val", estimate(model, val_data))
