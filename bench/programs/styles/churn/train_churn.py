# Customer churn from a table: numeric columns + a few categorical ones.
# Usage: python train_churn.py --epochs 2
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CARDINALITIES = [12, 30, 7]


def make_table(n, seed):
    rng = np.random.RandomState(seed)
    numeric = rng.normal(size=(n, 10)).astype("float32") * rng.uniform(1, 9, size=10).astype("float32")
    cats = np.stack([rng.randint(0, c, size=n) for c in CARDINALITIES], axis=1)
    score = numeric[:, 0] * 0.3 - numeric[:, 3] * 0.1 + (cats[:, 1] % 3) - 1
    target = (score + rng.normal(size=n) > 0).astype("float32")
    return numeric, cats, target


class ChurnNet(nn.Module):
    def __init__(self, n_numeric, cardinalities, emb_dim, hidden, mean, std):
        super().__init__()
        self.mean = mean
        self.std = std
        self.cardinalities = cardinalities
        self.tables = nn.ParameterList([nn.Parameter(torch.randn(c, emb_dim) * 0.05) for c in cardinalities])
        self.net = nn.Sequential(
            nn.Linear(n_numeric + emb_dim * len(cardinalities), hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, numeric, cats):
        mean = torch.tensor(self.mean, device=numeric.device)
        std = torch.tensor(self.std, device=numeric.device)
        x = (numeric - mean) / std
        embedded = []
        for i in range(len(self.cardinalities)):
            onehot = F.one_hot(cats[:, i], self.cardinalities[i]).float()
            embedded.append(onehot @ self.tables[i])
        return self.net(torch.cat([x] + embedded, dim=1)).squeeze(1)


def auc(scores, labels):
    order = np.argsort(scores)
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    pos = labels == 1
    return (ranks[pos].sum() - pos.sum() * (pos.sum() + 1) / 2) / max(pos.sum() * (~pos).sum(), 1)


def evaluate(model, loader, device):
    model.eval()
    scores, labels = [], []
    for numeric, cats, target in loader:
        out = torch.sigmoid(model(numeric.to(device), cats.to(device)))
        scores.append(out.detach().cpu().numpy())
        labels.append(target.numpy())
    model.train()
    return auc(np.concatenate(scores), np.concatenate(labels))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--l2", type=float, default=1e-4)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(7)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    numeric, cats, target = make_table(2048, 1)
    train = TensorDataset(torch.from_numpy(numeric), torch.from_numpy(cats), torch.from_numpy(target))
    vn, vc, vt = make_table(512, 2)
    valid = TensorDataset(torch.from_numpy(vn), torch.from_numpy(vc), torch.from_numpy(vt))
    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(valid, batch_size=256)

    model = ChurnNet(10, CARDINALITIES, 8, args.hidden, numeric.mean(0), numeric.std(0)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        running = 0.0
        for numeric_b, cats_b, target_b in train_loader:
            numeric_b, cats_b, target_b = numeric_b.to(device), cats_b.to(device), target_b.to(device)
            logits = model(numeric_b, cats_b)
            loss = F.binary_cross_entropy_with_logits(logits, target_b)
            reg = 0.0
            for p in model.parameters():
                reg = reg + (p ** 2).sum()
            total = loss + args.l2 * reg
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            running += loss.item() * len(target_b)
        print("epoch %d train %.4f auc %.4f" % (epoch, running / len(train), evaluate(model, valid_loader, device)))


if __name__ == "__main__":
    main()
