#!/usr/bin/env python
# Graph attention on a synthetic citation network; everything in one file, functions over tensors.
from copy import deepcopy
from argparse import ArgumentParser
import torch as th
import torch.nn.functional as fn
from torch.nn import Module, Parameter, init, Dropout


def make_graph(n, classes, features):
    labels = th.randint(0, classes, (n,))
    x = fn.one_hot(labels, classes).float() @ th.randn(classes, features) + th.randn(n, features)
    adj = th.rand(n, n) < 0.01
    same = labels[:, None] == labels[None, :]
    adj = adj | (same & (th.rand(n, n) < 0.03))
    adj = adj | adj.t()
    return x, adj.float(), labels


def normalise(adj):
    a = adj + th.eye(adj.shape[0]).to(adj.device)
    d = a.sum(1).pow(-0.5)
    return d[:, None] * a * d[None, :]


class GATLayer(Module):
    def __init__(self, f_in, f_out):
        super().__init__()
        self.W = Parameter(th.empty(f_in, f_out))
        self.a = Parameter(th.empty(2 * f_out, 1))
        init.xavier_uniform_(self.W)
        init.xavier_uniform_(self.a)
        self.f_out = f_out
        self.drop = Dropout(0.0)

    def forward(self, x, adj):
        h = x.mm(self.W)
        left = h.matmul(self.a[: self.f_out])
        right = h.matmul(self.a[self.f_out :])
        e = left + right.T
        e = th.where(e > 0, e, 0.2 * e)
        e = e.masked_fill(adj == 0, -9e15)
        w = th.exp(e - e.max(dim=1, keepdim=True)[0])
        w = w / w.sum(dim=1, keepdim=True)
        return self.drop(w).mm(h)


class GAT(Module):
    def __init__(self, f_in, hidden, classes):
        super().__init__()
        self.first, self.second = GATLayer(f_in, hidden), GATLayer(hidden, classes)

    def forward(self, x, adj):
        a = normalise(adj)
        h = self.first(x, adj)
        h = th.where(h > 0, h, th.exp(h) - 1)
        return a @ self.second(h, adj)


def nll(scores, labels, index):
    logp = scores - th.log(th.exp(scores).sum(dim=-1, keepdim=True))
    picked = logp[index].gather(1, labels[index].view(-1, 1))
    return -picked.mean()


def accuracy(model, x, adj, labels, index):
    model.eval()
    out = model(x, adj)
    hits = 0
    for i in index:
        if out[i].argmax().item() == labels[i].item():
            hits += 1
    return hits / len(index)


def run(opts):
    th.manual_seed(opts.seed)
    dev = th.device('cuda') if th.cuda.is_available() else th.device('cpu')
    x, adj, labels = make_graph(opts.nodes, 5, 64)
    x, adj, labels = x.to(dev), adj.to(dev), labels.to(dev)
    order = th.randperm(opts.nodes)
    train, valid = order[: opts.nodes // 2], order[opts.nodes // 2 :]
    net = GAT(64, 32, 5).to(dev)
    momentum = [th.zeros_like(p) for p in net.parameters()]
    best, best_state = 0.0, None
    for epoch in range(opts.epochs):
        net.train()
        for p in net.parameters():
            p.grad = None
        loss = nll(net(x, adj), labels, train)
        loss.backward()
        with th.no_grad():
            for p, m in zip(net.parameters(), momentum):
                m.mul_(0.9).add_(p.grad)
                p -= opts.lr * m
        acc = accuracy(net, x, adj, labels, valid)
        if acc >= best:
            best, best_state = acc, deepcopy(net.state_dict())
        print(f'epoch {epoch:3d}  loss {loss.item():.4f}  accuracy {acc:.4f}')


if __name__ == '__main__':
    p = ArgumentParser()
    p.add_argument('--epochs', type=int, default=20)
    p.add_argument('--nodes', type=int, default=300)
    p.add_argument('--lr', type=float, default=0.05)
    p.add_argument('--seed', type=int, default=3)
    run(p.parse_args())
