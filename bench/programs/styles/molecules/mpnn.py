"""Message passing on batches of small random molecules, in a functional style."""
import torch
import torch.nn.functional as F

HIDDEN, ROUNDS, BATCH, STEPS = 48, 3, 16, 24
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ATOM_WEIGHTS = [1.008, 12.011, 14.007, 15.999, 18.998, 30.974, 32.06, 35.45]


def random_molecule(gen):
    n = int(torch.randint(5, 12, (1,), generator=gen))
    atoms = torch.randint(0, 8, (n,), generator=gen)
    src = torch.arange(1, n)
    dst = (torch.rand(n - 1, generator=gen) * src).long()
    edges = torch.cat([torch.stack([src, dst]), torch.stack([dst, src])], dim=1)
    return atoms, edges


def batch_graphs(mols):
    atoms = torch.tensor([], dtype=torch.long)
    edges = torch.zeros(2, 0, dtype=torch.long)
    owner = torch.tensor([], dtype=torch.long)
    offset = 0
    for i, (a, e) in enumerate(mols):
        atoms = torch.cat([atoms, a])
        edges = torch.cat([edges, e + offset], dim=1)
        owner = torch.cat([owner, torch.full((len(a),), i)])
        offset += len(a)
    return atoms.to(DEVICE), edges.to(DEVICE), owner.to(DEVICE)


def init_params(gen):
    def w(*shape):
        return (torch.randn(*shape, generator=gen) * shape[0] ** -0.5).to(DEVICE).requires_grad_()
    return {
        "embed": w(8, HIDDEN), "msg": w(2 * HIDDEN, HIDDEN), "upd": w(2 * HIDDEN, HIDDEN),
        "read": w(HIDDEN + 1, 1),
    }


def propagate(params, h, edges):
    src, dst = edges[0], edges[1]
    m = F.relu(torch.cat([h[src], h[dst]], dim=1) @ params["msg"])
    agg = torch.zeros_like(h)
    gathered = []
    for v in range(h.shape[0]):
        gathered.append(m[dst == v].sum(0))
    agg = torch.stack(gathered)
    return h + torch.tanh(torch.cat([h, agg], dim=1) @ params["upd"])


def predict(params, atoms, edges, owner, n):
    weights = torch.tensor(ATOM_WEIGHTS).to(atoms.device)
    h = params["embed"][atoms]
    for _ in range(ROUNDS):
        h = propagate(params, h, edges)
    h = torch.cat([h, weights[atoms].unsqueeze(1) / 12.0], dim=1)
    pooled = torch.zeros(n, HIDDEN + 1, device=h.device).index_add(0, owner, h)
    return (pooled @ params["read"]).squeeze(1)


def adam_step(params, grads, state, lr, t, b1=0.9, b2=0.999, eps=1e-8):
    for key in params:
        m, v = state[key]
        g = grads[key]
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        state[key] = (m, v)
        with torch.no_grad():
            params[key] -= lr * (m / (1 - b1 ** t)) / (torch.sqrt(v / (1 - b2 ** t)) + eps)


def train():
    gen = torch.Generator().manual_seed(13)
    mols = [random_molecule(gen) for _ in range(128)]
    targets = torch.tensor([sum(ATOM_WEIGHTS[i] for i in a.tolist()) / 100 for a, _ in mols])
    params = init_params(gen)
    state = {k: (torch.zeros_like(p), torch.zeros_like(p)) for k, p in params.items()}
    for step in range(1, STEPS + 1):
        pick = torch.randint(0, len(mols), (BATCH,), generator=gen).tolist()
        atoms, edges, owner = batch_graphs([mols[i] for i in pick])
        y = targets[pick].to(DEVICE)
        loss = F.mse_loss(predict(params, atoms, edges, owner, BATCH), y)
        grads = dict(zip(params, torch.autograd.grad(loss, list(params.values()))))
        adam_step(params, grads, state, 3e-3, step)
        print(f"{step:3d} {loss.item():.5f}")
    torch.save({k: p.detach().cpu() for k, p in params.items()}, "mpnn.pt")


if __name__ == "__main__":
    train()
