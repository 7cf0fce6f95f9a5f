import torch


def make_series(n_sites, n_hours, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(n_hours).float()
    phase = torch.rand(n_sites, 1, generator=g) * 6.28
    daily = torch.sin(2 * 3.14159265 * t / 24 + phase)
    weekly = 0.5 * torch.sin(2 * 3.14159265 * t / 168 + phase)
    return daily + weekly + 0.1 * torch.randn(n_sites, n_hours, generator=g)


def sample_windows(series, n, history, horizon):
    xs, ys = [], []
    for _ in range(n):
        site = torch.randint(0, series.shape[0], (1,)).item()
        start = torch.randint(0, series.shape[1] - history - horizon, (1,)).item()
        xs.append(series[site, start:start + history])
        ys.append(series[site, start + history:start + history + horizon])
    return torch.stack(xs), torch.stack(ys)


def moving_average(x, width):
    """Centred-left moving average, x: (batch, time)."""
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        lo = max(0, t - width + 1)
        out[:, t] = x[:, lo:t + 1].mean(dim=1)
    return out


def quantile_loss(pred, target, quantiles):
    # pred: (batch, horizon, Q)
    losses = []
    for i, q in enumerate(quantiles):
        err = target - pred[:, :, i]
        losses.append(torch.max(q * err, (q - 1) * err).mean())
    return sum(losses)
