"""Two-layer graph attention + GCN node classification on a random community graph. Full batch training."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, NODES, CLASSES, FEATURES, HIDDEN, EPOCHS = 3, 600, 6, 64, 96, 40
dev = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def community_graph():
    gen = torch.Generator().manual_seed(SEED)
    y = torch.arange(NODES) % CLASSES
    same = y[:, None] == y[None, :]
    prob = torch.where(same, 0.04, 0.003)
    adj = torch.rand(NODES, NODES, generator=gen) < prob
    adj = torch.triu(adj, 1)
    adj = adj | adj.t()
    x = F.one_hot(y, FEATURES).float() * 0.6 + torch.randn(NODES, FEATURES, generator=gen)
    return x, y, adj.nonzero().t().contiguous()


class GCNLayer(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.lin = nn.Linear(fin, fout)

    def forward(self, x, edge_index):
        n = x.size(0)
        # symmetric normalisation  D^-1/2 (A + I) D^-1/2
        A = torch.zeros(n, n, device=x.device)
        A[edge_index[0], edge_index[1]] = 1.0
        A = A + torch.eye(n, device=x.device)
        deg = A.sum(dim=1)
        D = torch.diag(deg.pow(-0.5))
        return D @ A @ D @ self.lin(x)


class SageLayer(nn.Module):
    """mean aggregation of neighbours, concatenated with the node's own features"""

    def __init__(self, fin, fout):
        super().__init__()
        self.lin = nn.Linear(2 * fin, fout)

    def forward(self, x, edge_index):
        src, dst = edge_index
        out = []
        for v in range(x.size(0)):
            nbrs = src[dst == v]
            if nbrs.numel() == 0:
                out.append(torch.zeros(x.size(1), device=x.device))
            else:
                out.append(x[nbrs].mean(0))
        agg = torch.stack(out, dim=0)
        return self.lin(torch.cat([x, agg], dim=1))


class LayerNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        mu = x.mean(1, keepdim=True)
        sigma2 = x.var(1, unbiased=False, keepdim=True)
        return self.g * (x - mu) / (sigma2 + 1e-5).sqrt() + self.b


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNLayer(FEATURES, HIDDEN)
        self.norm = LayerNorm(HIDDEN)
        self.conv2 = SageLayer(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        h = F.relu(self.norm(self.conv1(x, edge_index)))
        h = F.relu(self.conv2(h, edge_index))
        return self.head(h)


def accuracy(logits, y, mask):
    correct = 0
    for i in range(len(y)):
        if mask[i] and logits[i].argmax() == y[i]:
            correct += 1
    return correct / int(mask.sum())


torch.manual_seed(SEED)
x, y, edge_index = community_graph()
train_mask = torch.rand(NODES) < 0.5
model = Net().to(dev)
opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

for epoch in range(EPOCHS):
    feats, labels, edges, mask = x.to(dev), y.to(dev), edge_index.to(dev), train_mask.to(dev)
    model.train()
    opt.zero_grad()
    logits = model(feats, edges)
    loss = F.cross_entropy(logits[mask], labels[mask])
    loss.backward()
    opt.step()
    acc = accuracy(logits, labels, ~mask)
    if (epoch + 1) % 10 == 0:
        print(f"epoch {epoch + 1:3d} loss {loss.item():.4f} val acc {acc:.3f}")
