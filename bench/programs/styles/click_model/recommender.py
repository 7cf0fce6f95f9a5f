#!/usr/bin/env python
# DLRM-ish click model: dense features + categorical ids + a ragged click history.
import random
import time

import torch
from torch import nn

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
NUM_TABLES = 8
ROWS = 5000
DIM = 32
DENSE = 13
BATCH = 512
STEPS = 30


class ClickStream(torch.utils.data.Dataset):
    """One synthetic impression per index; generated ahead so that runs repeat."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(7)
        self.dense = torch.rand(n, DENSE, generator=g)
        self.cats = torch.randint(0, ROWS, (n, NUM_TABLES), generator=g)
        lengths = torch.randint(1, 12, (n,), generator=g).tolist()
        self.history = [torch.randint(0, ROWS, (k,), generator=g) for k in lengths]
        self.label = (self.dense.sum(1) + self.cats[:, 0] / ROWS > DENSE / 2 + 0.5).float()

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.dense[i], self.cats[i], self.history[i], self.label[i]


def collate(rows):
    dense = torch.stack([r[0] for r in rows])
    cats = torch.stack([r[1] for r in rows])
    history = [r[2] for r in rows]
    labels = torch.stack([r[3] for r in rows])
    return dense, cats, history, labels


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Interaction(nn.Module):
    def forward(self, vectors):
        # all pairwise dot products between the feature vectors
        pairs = []
        for i in range(len(vectors)):
            for j in range(i):
                pairs.append((vectors[i] * vectors[j]).sum(dim=1, keepdim=True))
        return torch.cat(pairs, dim=1)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(ROWS, DIM) for _ in range(NUM_TABLES)])
        self.items = nn.Embedding(ROWS, DIM)
        self.bottom = mlp(DENSE, 128, 64, DIM)
        self.interact = Interaction()
        n = NUM_TABLES + 2
        self.top = mlp(DIM + n * (n - 1) // 2, 256, 128, 1)

    def pool_history(self, history):
        pooled = []
        for ids in history:
            ids = ids.to(self.items.weight.device)
            pooled.append(self.items(ids).mean(dim=0))
        return torch.stack(pooled)

    def forward(self, dense, cats, history):
        bottom = self.bottom(dense)
        vectors = [bottom]
        for k, table in enumerate(self.tables):
            vectors.append(table(cats[:, k]))
        vectors.append(self.pool_history(history))
        z = torch.cat([bottom, self.interact(vectors)], dim=1)
        return self.top(z).squeeze(1)


def bce(logits, targets):
    p = 1 / (1 + torch.exp(-logits))
    return -(targets * torch.log(p + 1e-7) + (1 - targets) * torch.log(1 - p + 1e-7)).mean()


def main():
    random.seed(0)
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(ClickStream(BATCH * STEPS), batch_size=BATCH, shuffle=False, collate_fn=collate)
    net = Recommender().to(DEVICE)
    opt = torch.optim.Adagrad(net.parameters(), lr=0.01)
    t0 = time.time()
    seen, hits, total = 0, 0, 0.0
    for it, (dense, cats, history, labels) in enumerate(loader):
        dense, cats, labels = dense.to(DEVICE), cats.to(DEVICE), labels.to(DEVICE)
        logits = net(dense, cats, history)
        loss = bce(logits, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        preds = (logits > 0).cpu()
        for p, y in zip(preds, labels.cpu()):
            if bool(p) == bool(y):
                hits += 1
        seen += len(labels)
        total += loss.detach().cpu().numpy()
        if it % 10 == 0:
            print("it", it, "loss", round(float(total) / (it + 1), 4))
    print("accuracy", round(hits / seen, 4))
    print("took %.1fs" % (time.time() - t0))


if __name__ == "__main__":
    main()
