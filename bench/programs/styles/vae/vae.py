import os
import torch
from torch import nn, optim
from torch.utils import data as tud

BATCH = int(os.environ.get("BATCH", 64))
EPOCHS = int(os.environ.get("EPOCHS", 2))
dev = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


class VAE(nn.Module):
    def __init__(self, pixels=784, hidden=256, latent=16):
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mu = nn.Linear(hidden, latent)
        self.logvar = nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels))

    def reparameterize(self, mu, logvar):
        std = logvar.mul(0.5).exp()
        eps = torch.randn(*mu.shape).to(mu.device)
        return mu + eps * std

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = self.reparameterize(mu, logvar)
        return torch.sigmoid(self.decoder(z)), mu, logvar


def loss_function(recon, x, mu, logvar):
    total = 0
    for b in range(x.shape[0]):
        bce = -(x[b] * torch.log(recon[b] + 1e-6) + (1 - x[b]) * torch.log(1 - recon[b] + 1e-6)).sum()
        kld = -0.5 * torch.sum(1 + logvar[b] - mu[b].pow(2) - logvar[b].exp())
        total = total + bce + kld
    return total / x.shape[0]


def clip(parameters, largest):
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in parameters))
    if norm > largest:
        for p in parameters:
            p.grad = p.grad * (largest / norm)


def fit():
    torch.manual_seed(11)
    pictures = (torch.rand(640, 784) > 0.7).float()
    loader = tud.DataLoader(tud.TensorDataset(pictures), batch_size=BATCH, shuffle=True)
    net = VAE()
    net.to(dev)
    opt = optim.Adam(net.parameters(), 1e-3)
    all_losses = torch.empty(0).to(dev)
    for epoch in range(EPOCHS):
        epoch_loss = 0
        for n, batch in enumerate(loader):
            x = batch[0].to(dev)
            opt.zero_grad()
            recon, mu, logvar = net(x)
            loss = loss_function(recon, x, mu, logvar)
            loss.backward()
            clip(list(net.parameters()), 5.0)
            opt.step()
            all_losses = torch.cat([all_losses, loss.detach().view(1)])
            epoch_loss += float(loss)
            torch.cuda.synchronize() if torch.cuda.is_available() else None
        print("epoch", epoch, "loss %.3f" % (epoch_loss / len(loader)))

    net.eval()
    codes = []
    for batch in tud.DataLoader(tud.TensorDataset(pictures), batch_size=32):
        _, mu, _ = net(batch[0].to(dev))
        codes.append(mu.cpu())
    codes = torch.cat(codes)
    print("losses %.3f codes %.5f" % (all_losses.mean().item(), codes.std().item()))


fit()
