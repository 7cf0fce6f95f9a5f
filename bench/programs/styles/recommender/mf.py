"""Matrix factorisation with side tables, functional style. Weights are plain tensors; the optimizer is written out."""
import sys

import torch

torch.manual_seed(7)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 25
USERS, ITEMS, DIM, BATCH = 500, 800, 32, 256


def init():
    params = {
        "user": torch.randn(USERS, DIM) * 0.1,
        "item": torch.randn(ITEMS, DIM) * 0.1,
        "w1": torch.randn(2 * DIM, 64) / 8.0,
        "b1": torch.zeros(64),
        "w2": torch.randn(64, 1) / 8.0,
    }
    return {k: v.to(DEVICE).requires_grad_() for k, v in params.items()}


def lookup(table, index):
    """Rows of a table."""
    onehot = torch.nn.functional.one_hot(index, table.shape[0]).float()
    return onehot @ table


def cosine(a, b):
    return (a * b).sum(dim=1) / (torch.sqrt((a ** 2).sum(dim=1)) * torch.sqrt((b ** 2).sum(dim=1)) + 1e-8)


def forward(params, users, items):
    u, i = lookup(params["user"], users), lookup(params["item"], items)
    h = torch.cat([u, i], dim=1) @ params["w1"] + params["b1"]
    h = torch.where(h > 0, h, torch.zeros_like(h))
    return (h @ params["w2"]).squeeze(1) + cosine(u, i)


def bce(logits, labels):
    p = 1.0 / (1.0 + torch.exp(-logits))
    return -(labels * torch.log(p + 1e-7) + (1 - labels) * torch.log(1 - p + 1e-7)).mean()


def adam(params, state, t, lr=1e-2, b1=0.9, b2=0.999, eps=1e-8):
    with torch.no_grad():
        for name, p in params.items():
            m, v = state[name]
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            m_hat = m / (1 - b1 ** t)
            v_hat = v / (1 - b2 ** t)
            p -= lr * m_hat / (v_hat.sqrt() + eps)
            p.grad.zero_()


def batch():
    users = torch.randint(0, USERS, (BATCH,)).to(DEVICE)
    items = torch.randint(0, ITEMS, (BATCH,)).to(DEVICE)
    labels = ((users * 31 + items * 17) % 3 == 0).float()
    return users, items, labels


params = init()
state = {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in params.items()}
history = []
for t in range(1, STEPS + 1):
    users, items, labels = batch()
    loss = bce(forward(params, users, items), labels)
    loss.backward()
    adam(params, state, t)
    history.append(loss.detach().cpu().numpy())
    print(f"step {t} loss {float(loss):.4f}")

# score every user against a few items
ratings = torch.zeros(USERS, 10).to(DEVICE)
for u in range(USERS):
    for j in range(10):
        ratings[u, j] = torch.dot(params["user"][u], params["item"][j]).detach()
print(f"best {ratings.max().item():.4f} mean {ratings.mean().item():.5f}")
