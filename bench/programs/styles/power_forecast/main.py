import torch
from torch import nn

from utils import make_series, moving_average, quantile_loss, sample_windows

config = dict(
    sites=20, hours=1200, history=96, horizon=12, batch=32, steps=30,
    hidden=48, width=24, quantiles=[0.1, 0.5, 0.9], lr=2e-3, seed=8,
)


class Forecaster(nn.Module):
    def __init__(self, hidden, horizon, n_q, width):
        super().__init__()
        self.gru = nn.GRU(2, hidden, batch_first=True)
        self.step = nn.GRUCell(1, hidden)
        self.out = nn.Linear(hidden, n_q)
        self.horizon = horizon
        self.width = width

    def forward(self, x):
        trend = moving_average(x, self.width)
        feats = torch.stack([x - trend, trend], dim=-1)
        _, h = self.gru(feats)
        h = h[0]
        last = x[:, -1:]
        preds = None
        for _ in range(self.horizon):
            h = self.step(last, h)
            q = self.out(h).unsqueeze(1)
            preds = q if preds is None else torch.cat([preds, q], dim=1)
            last = q[:, 0, 1:2]
        return preds


def run(config):
    torch.manual_seed(config["seed"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    series = make_series(config["sites"], config["hours"])
    model = Forecaster(config["hidden"], config["horizon"], len(config["quantiles"]), config["width"])
    model = model.to(device)
    opt = torch.optim.RMSprop(model.parameters(), lr=config["lr"])
    best = float("inf")
    for step in range(config["steps"]):
        x, y = sample_windows(series, config["batch"], config["history"], config["horizon"])
        x, y = x.to(device), y.to(device)
        loss = quantile_loss(model(x), y, config["quantiles"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if loss.item() < best:
            best = loss.item()
        if step % 10 == 0:
            print("step", step, "loss", round(loss.item(), 4), "best", round(best, 4))


if __name__ == "__main__":
    run(config)
