"""Two towers trained with a contrastive loss, then recall over a small corpus."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.ff = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, ids):
        vectors = self.emb(ids)
        pooled = []
        for i in range(ids.size(0)):
            keep = ids[i] != 0
            pooled.append(vectors[i][keep].mean(dim=0))
        return self.ff(torch.stack(pooled))


def normalize(x):
    return x / torch.sqrt((x * x).sum(dim=-1, keepdim=True))


def similarity(a, b):
    n, m = a.size(0), b.size(0)
    a = a.unsqueeze(1).repeat(1, m, 1)
    b = b.unsqueeze(0).repeat(n, 1, 1)
    return (a * b).sum(-1)


def info_nce(q, d, temperature):
    sim = similarity(normalize(q), normalize(d)) / temperature
    labels = torch.arange(sim.size(0)).to(sim.device)
    logp = torch.log(torch.softmax(sim, dim=1))
    return -logp[torch.arange(sim.size(0)), labels].mean()


class Corpus:
    def __init__(self, n, length, vocab):
        gen = torch.Generator().manual_seed(21)
        self.queries = torch.randint(1, vocab, (n, length), generator=gen)
        self.docs = self.queries.roll(1, dims=1)
        cut = torch.randint(length // 2, length, (n,), generator=gen)
        for i in range(n):
            self.queries[i, cut[i]:] = 0

    def batches(self, size):
        order = torch.randperm(len(self.queries))
        for start in range(0, len(order) - size + 1, size):
            pick = order[start:start + size]
            yield self.queries[pick], self.docs[pick]


def recall_at(k, query_tower, doc_tower, corpus, device):
    query_tower.eval(), doc_tower.eval()
    docs = torch.cat([doc_tower(c.to(device)) for c in corpus.docs.split(32)])
    hits = 0
    for i in range(len(corpus.queries)):
        q = query_tower(corpus.queries[i:i + 1].to(device))
        scores = similarity(normalize(q), normalize(docs))[0]
        top = torch.argsort(scores, descending=True)[:k].cpu().tolist()
        if i in top:
            hits += 1
    query_tower.train(), doc_tower.train()
    return hits / len(corpus.queries)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n", type=int, default=192)
    ap.add_argument("--dim", type=int, default=64)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=24)
    a = ap.parse_args()
    torch.manual_seed(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus = Corpus(a.n, 16, 500)
    q_tower, d_tower = Tower(500, a.dim).to(device), Tower(500, a.dim).to(device)
    optimizer = torch.optim.Adam(list(q_tower.parameters()) + list(d_tower.parameters()), lr=1e-3)
    for epoch in range(a.epochs):
        total = 0.0
        for q, d in corpus.batches(a.batch):
            loss = info_nce(q_tower(q.to(device)), d_tower(d.to(device)), 0.07)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach().cpu().numpy()
        print("epoch", epoch, "loss", total, "recall@5", recall_at(5, q_tower, d_tower, corpus, device))


if __name__ == "__main__":
    main()
