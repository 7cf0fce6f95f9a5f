# Greedy / top-k decoding with a KV cache for a small llama-like model (random weights).
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 256
    n_layers: int = 4
    n_heads: int = 8
    n_kv_heads: int = 2
    vocab_size: int = 4096
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_seq_len: int = 256


def precompute_freqs_cis(dim, end, theta, device):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2, device=device)[: (dim // 2)].float() / dim))
    t = torch.arange(end, device=device)
    freqs = torch.outer(t, freqs).float()
    return torch.cos(freqs), torch.sin(freqs)


def apply_rotary_emb(x, cos, sin):
    x1, x2 = x[..., ::2], x[..., 1::2]
    cos = cos[None, :, None, :]
    sin = sin[None, :, None, :]
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)


def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return x[:, :, :, None, :].expand(bs, slen, n_kv_heads, n_rep, head_dim).reshape(bs, slen, n_kv_heads * n_rep, head_dim)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.head_dim = args.dim // args.n_heads
        self.n_rep = args.n_heads // args.n_kv_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        self.cache_k = None
        self.cache_v = None

    def forward(self, x, start_pos):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.args.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.args.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.args.n_kv_heads, self.head_dim)
        cos, sin = precompute_freqs_cis(self.head_dim, self.args.max_seq_len, self.args.rope_theta, x.device)
        cos, sin = cos[start_pos : start_pos + seqlen], sin[start_pos : start_pos + seqlen]
        xq, xk = apply_rotary_emb(xq, cos, sin), apply_rotary_emb(xk, cos, sin)
        if self.cache_k is None:
            self.cache_k, self.cache_v = xk, xv
        else:
            self.cache_k = torch.cat([self.cache_k, xk], dim=1)
            self.cache_v = torch.cat([self.cache_v, xv], dim=1)
        keys = repeat_kv(self.cache_k, self.n_rep).transpose(1, 2)
        values = repeat_kv(self.cache_v, self.n_rep).transpose(1, 2)
        xq = xq.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if seqlen > 1:
            mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
            mask = torch.triu(mask, diagonal=1)
            scores = scores + mask
        scores = F.softmax(scores.float(), dim=-1).type_as(xq)
        output = torch.matmul(scores, values)
        return self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention = Attention(args)
        self.w1 = nn.Linear(args.dim, 4 * args.dim, bias=False)
        self.w2 = nn.Linear(4 * args.dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, 4 * args.dim, bias=False)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)

    def forward(self, x, start_pos):
        h = x + self.attention(self.attention_norm(x), start_pos)
        n = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(n)) * self.w3(n))


class Transformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList([Block(args) for _ in range(args.n_layers)])
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)

    def forward(self, tokens, start_pos):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, start_pos)
        return self.output(self.norm(h))


def sample_top_k(logits, k):
    values, indices = torch.sort(logits, dim=-1, descending=True)
    kept, ids = values[:, :k], indices[:, :k]
    best = torch.argmax(torch.softmax(kept, dim=-1), dim=-1, keepdim=True)
    return ids.gather(1, best)


def generate(model, prompt, max_new_tokens, eos_id):
    tokens = prompt
    logits = model(tokens, 0)
    finished = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    for pos in range(prompt.shape[1], prompt.shape[1] + max_new_tokens):
        next_token = sample_top_k(logits[:, -1], 50)
        tokens = torch.cat([tokens, next_token], dim=1)
        for b in range(tokens.shape[0]):
            if next_token[b].item() == eos_id:
                finished[b] = True
        if finished.all():
            break
        logits = model(next_token, pos)
    return tokens


def main():
    torch.manual_seed(1234)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args = ModelArgs()
    model = Transformer(args).to(device)
    model.eval()
    prompt = torch.randint(3, args.vocab_size, (4, 32)).to(device)
    out = generate(model, prompt, 96, eos_id=2)
    print("generated", out.shape[1] - 32, "tokens, checksum", int(out.sum()))
    print("first row", out[0, 32:48].tolist())


if __name__ == "__main__":
    main()
