"""Fits the energy of small molecules with a continuous-filter convolution network.

The molecules are random clusters of atoms, their energies come from a pair potential.
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.autograd.set_detect_anomaly(True)

CUTOFF = 3.5
N_RBF = 128
HIDDEN = 64
LAYERS = 4
BATCH = 20
STEPS = 40
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_molecule(rng):
    n = rng.integers(18, 33)
    z = rng.choice([1, 6, 7, 8], size=n, p=[0.5, 0.3, 0.1, 0.1])
    pos = np.zeros((n, 3))
    for i in range(1, n):
        direction = rng.normal(size=3)
        anchor = pos[rng.integers(0, i)]
        pos[i] = anchor + 1.5 * direction / np.linalg.norm(direction) + rng.normal(scale=0.1, size=3)
    return z, pos


def pair_energy(z, pos):
    d = np.linalg.norm(pos[:, None] - pos[None], axis=-1)
    iu = np.triu_indices(len(z), 1)
    charge = np.sqrt(z[iu[0]] * z[iu[1]])
    r = d[iu] + 0.5
    return float((charge * (1.0 / r**4 - 1.2 / r**2)).sum() / len(z))


class Molecules:
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.items = [random_molecule(rng) for _ in range(count)]
        energies = np.array([pair_energy(z, pos) for z, pos in self.items])
        self.energies = (energies - energies.mean()) / energies.std()

    def neighbours(self, pos):
        src, dst = [], []
        for i in range(len(pos)):
            for j in range(len(pos)):
                if i != j and np.linalg.norm(pos[i] - pos[j]) < CUTOFF:
                    src.append(j)
                    dst.append(i)
        return np.array(src), np.array(dst)

    def batch(self, chosen):
        zs, poss, srcs, dsts, owner = [], [], [], [], []
        offset = 0
        for k, index in enumerate(chosen):
            z, pos = self.items[index]
            src, dst = self.neighbours(pos)
            zs.append(z)
            poss.append(pos)
            srcs.append(src + offset)
            dsts.append(dst + offset)
            owner.append(np.full(len(z), k))
            offset += len(z)
        return (
            torch.from_numpy(np.concatenate(zs)),
            torch.from_numpy(np.concatenate(poss)).float(),
            torch.from_numpy(np.concatenate(srcs)),
            torch.from_numpy(np.concatenate(dsts)),
            torch.from_numpy(np.concatenate(owner)),
            torch.from_numpy(self.energies[chosen]).float(),
        )


class RadialBasis(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.0, CUTOFF, N_RBF))
        self.gamma = N_RBF / CUTOFF

    def forward(self, distance):
        envelope = 0.5 * (torch.cos(math.pi * distance / CUTOFF) + 1.0)
        gauss = torch.exp(-self.gamma * (distance[:, None] - self.centres) ** 2)
        return envelope[:, None] * gauss


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.rbf = RadialBasis()
        self.filter = nn.Sequential(nn.Linear(N_RBF, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN))
        self.before = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.after = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN))

    def forward(self, h, pos, src, dst):
        distance = (pos[src] - pos[dst]).norm(dim=-1)
        weights = self.filter(self.rbf(distance))
        messages = self.before(h)[src] * weights
        incidence = F.one_hot(dst, num_classes=h.shape[0]).to(messages.dtype)
        gathered = incidence.t() @ messages
        return h + self.after(gathered)


class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, HIDDEN)
        self.interactions = nn.ModuleList([Interaction() for _ in range(LAYERS)])
        self.readout = nn.Sequential(nn.Linear(HIDDEN, HIDDEN // 2), nn.SiLU(), nn.Linear(HIDDEN // 2, 1))

    def forward(self, z, pos, src, dst, owner, molecules):
        h = self.embed(z)
        for interaction in self.interactions:
            h = interaction(h, pos, src, dst)
        per_atom = self.readout(h).squeeze(-1)
        return torch.zeros(molecules, device=h.device).index_add_(0, owner, per_atom)


if __name__ == "__main__":
    torch.manual_seed(0)
    order = np.random.default_rng(1)
    data = Molecules(300, seed=5)
    net = EnergyNet().to(DEVICE)
    opt = torch.optim.Adam(net.parameters(), lr=5e-4)
    for step in range(STEPS):
        chosen = order.choice(len(data.items), size=BATCH, replace=False)
        z, pos, src, dst, owner, energy = [t.to(DEVICE) for t in data.batch(chosen)]
        loss = F.smooth_l1_loss(net(z, pos, src, dst, owner, BATCH), energy)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0 or step == STEPS - 1:
            print("step %d loss %.4f" % (step, loss.item()), flush=True)
