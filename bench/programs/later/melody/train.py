"""Next-event model for symbolic music (pitch, onset and duration folded into one vocabulary)."""

import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def compose(vocab, events, seed):
    """A long stream in which motifs return, now and then transposed."""
    rng = np.random.default_rng(seed)
    motifs = rng.integers(0, vocab, size=(64, 16))
    picks = rng.integers(0, len(motifs), size=events // 16)
    shift = rng.choice([0, 0, 0, 12, 24], size=(len(picks), 1))
    return torch.from_numpy(((motifs[picks] + shift) % vocab).reshape(-1))


class Attention(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.register_buffer("hidden", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, x):
        n = x.shape[1]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        outs = []
        for h in range(self.heads):
            part = slice(h * self.head_dim, (h + 1) * self.head_dim)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(self.head_dim)
            scores = scores.masked_fill(self.hidden[:n, :n], float("-inf"))
            outs.append(torch.softmax(scores, dim=-1) @ v[..., part])
        return self.proj(torch.cat(outs, dim=-1))


class Layer(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, length)
        self.ln2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Composer(nn.Module):
    def __init__(self, vocab, dim, heads, layers, length):
        super().__init__()
        self.events = nn.Embedding(vocab, dim)
        self.places = nn.Parameter(0.02 * torch.randn(length, dim))
        self.layers = nn.ModuleList(Layer(dim, heads, length) for _ in range(layers))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, events):
        x = self.events(events) + self.places[: events.shape[1]]
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.ln(x))


class ClippedAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay, and a limit for the gradient norm of each tensor."""

    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01, limit=0.5):
        super().__init__(
            params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, limit=limit)
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["t"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["t"] += 1
                norm = p.grad.norm().item()
                grad = p.grad * min(1.0, group["limit"] / (norm + 1e-6))
                state["m"] = beta1 * state["m"] + (1 - beta1) * grad
                state["v"] = beta2 * state["v"] + (1 - beta2) * grad * grad
                m_hat = state["m"] / (1 - beta1 ** state["t"])
                v_hat = state["v"] / (1 - beta2 ** state["t"])
                update = m_hat / (torch.sqrt(v_hat) + group["eps"])
                p.copy_(p - group["lr"] * (update + group["weight_decay"] * p))


def smoothed_loss(logits, target, smoothing):
    vocab = logits.shape[-1]
    wanted = F.one_hot(target, vocab).float()
    wanted = wanted * (1 - smoothing) + smoothing / vocab
    log_probs = torch.log(torch.softmax(logits, dim=-1) + 1e-20)
    return -(wanted * log_probs).sum(dim=-1).mean()


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stream = compose(args.vocab, 400_000, args.seed).to(device)
    rows = torch.arange(args.length + 1, device=device)
    starts = torch.randint(
        len(stream) - args.length - 1, (args.steps, args.batch, 1), device="cpu"
    ).to(device)

    model = Composer(args.vocab, args.dim, args.heads, args.layers, args.length).to(device)
    optimizer = ClippedAdam(model.parameters(), lr=args.lr)

    for step in range(1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, step / args.warmup)
        window = stream[starts[step - 1] + rows]
        logits = model(window[:, :-1])
        loss = smoothed_loss(logits, window[:, 1:], args.smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
