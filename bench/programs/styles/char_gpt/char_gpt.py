"""
Train a character-level GPT, minGPT/nanoGPT style. Everything is configured by the globals below.
"""
import math
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

# -----------------------------------------------------------------------------
batch_size = 16
block_size = 64
n_layer = 3
n_head = 4
n_embd = 128
max_iters = 30
learning_rate = 1e-3
grad_clip = 1.0
weight_decay = 0.1
beta1, beta2 = 0.9, 0.95
log_interval = 10
device = "cuda" if torch.cuda.is_available() else "cpu"
# -----------------------------------------------------------------------------
torch.manual_seed(1337)
text = ("it was the best of times, it was the worst of times, it was the age of wisdom, " * 200)
chars = sorted(set(text))
stoi = {ch: i for i, ch in enumerate(chars)}
vocab_size = len(chars)
data = torch.tensor([stoi[c] for c in text], dtype=torch.long)


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x.to(device), y.to(device)


class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Head(nn.Module):
    """one head of self-attention"""

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        tril = torch.tril(torch.ones(T, T, device=x.device))
        wei = wei.masked_fill(tril == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return wei @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd // n_head) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa = MultiHeadAttention()
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), NewGELU(), nn.Linear(4 * n_embd, n_embd))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        probs = F.softmax(logits, dim=-1)
        picked = torch.gather(probs, 2, targets.unsqueeze(-1)).squeeze(-1)
        return logits, -torch.log(picked).mean()


model = GPT().to(device)
m = {p: torch.zeros_like(p) for p in model.parameters()}
v = {p: torch.zeros_like(p) for p in model.parameters()}
t0 = time.time()
for iter_num in range(1, max_iters + 1):
    xb, yb = get_batch()
    logits, loss = model(xb, yb)
    model.zero_grad(set_to_none=True)
    loss.backward()
    total = 0.0
    for p in model.parameters():
        total += p.grad.norm().item() ** 2
    if math.sqrt(total) > grad_clip:
        for p in model.parameters():
            p.grad *= grad_clip / math.sqrt(total)
    # hand-rolled AdamW so that we can see what happens
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 - learning_rate * weight_decay)
            m[p].mul_(beta1).add_(p.grad, alpha=1 - beta1)
            v[p].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
            mhat = m[p] / (1 - beta1**iter_num)
            vhat = v[p] / (1 - beta2**iter_num)
            p.sub_(learning_rate * mhat / (vhat.sqrt() + 1e-8))
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {(time.time() - t0) * 1000 / iter_num:.0f}ms", flush=True)
