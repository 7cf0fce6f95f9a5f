#!/usr/bin/env python
# coding: utf-8

# # DCGAN on little squares

# In[1]:

import torch
from torch import nn, optim
import torch.nn.functional as F

torch.manual_seed(42)
device = 'cuda' if torch.cuda.is_available() else 'cpu'
nz = 32
batch_size = 32

# In[2]: data

def draw(n):
    imgs = torch.full((n, 1, 16, 16), -1.0)
    for i in range(n):
        x, y = torch.randint(0, 10, (2,)).tolist()
        s = torch.randint(3, 6, (1,)).item()
        imgs[i, 0, y:y + s, x:x + s] = 1.0
    return imgs

dataset = draw(512)
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)

# In[3]: networks

class Minibatch(nn.Module):
    # mean distance of each sample to the others, to fight mode collapse
    def forward(self, h):
        n = h.shape[0]
        dist = torch.zeros(n, 1, device=h.device)
        for i in range(n):
            dist[i, 0] = (h - h[i]).abs().mean()
        return torch.cat([h, dist], 1)

G = nn.Sequential(
    nn.ConvTranspose2d(nz, 64, 4, 1, 0, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
    nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
    nn.ConvTranspose2d(32, 1, 4, 2, 1, bias=False), nn.Tanh(),
).to(device)

D = nn.Sequential(
    nn.Conv2d(1, 32, 4, 2, 1), nn.LeakyReLU(0.2, True),
    nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2, True),
    nn.Flatten(), nn.Linear(64 * 4 * 4, 64), Minibatch(), nn.Linear(65, 1),
).to(device)

optG = optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
optD = optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()

# In[4]: training loop

G_losses, D_losses = [], []
it = 0
for epoch in range(2):
    for real in loader:
        real = real.to(device)
        ones = torch.ones(batch_size, 1).to(device)
        zeros = torch.zeros(batch_size, 1).to(device)

        # discriminator
        D.zero_grad()
        z = torch.randn(batch_size, nz, 1, 1).to(device)
        fake = G(z)
        lossD = bce(D(real), ones) + bce(D(fake), zeros)
        lossD.backward(retain_graph=True)
        optD.step()

        # generator
        G.zero_grad()
        z = torch.randn(batch_size, nz, 1, 1).to(device)
        fake = G(z)
        lossG = bce(D(fake), ones)
        lossG.backward()
        optG.step()

        G_losses.append(lossG.item())
        D_losses.append(lossD.item())
        if it % 10 == 0:
            print(f'[{epoch}][{it}] D {D_losses[-1]:.3f} G {G_losses[-1]:.3f}')
        it += 1

# In[5]: samples

fixed = torch.randn(16, nz, 1, 1, device=device)
samples = G(fixed).detach().cpu()
print('mean of samples', samples.mean().item())
