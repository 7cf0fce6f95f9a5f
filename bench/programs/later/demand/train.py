"""Train the probabilistic load forecaster."""

import torch
from torch import nn

from config import DataConfig, ModelConfig, TrainConfig
from data import make_loader
from losses import PinballLoss
from network import Forecaster


def main() -> None:
    train_cfg, data_cfg, model_cfg = TrainConfig(), DataConfig(), ModelConfig()
    torch.manual_seed(train_cfg.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    loader = make_loader(data_cfg)
    model = Forecaster(model_cfg).to(device)
    criterion = PinballLoss(model_cfg.quantiles)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=train_cfg.lr, weight_decay=train_cfg.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=train_cfg.steps)

    model.train()
    for step, batch in enumerate(loader, start=1):
        past, past_calendar, future_calendar, future = (
            part.to(device, non_blocking=True) for part in batch
        )
        loss = criterion(model(past, past_calendar, future_calendar), future)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train_cfg.clip)
        optimizer.step()
        schedule.step()
        if step % train_cfg.print_every == 0:
            print(f"step {step} pinball {loss.item():.5f}", flush=True)
        if step == train_cfg.steps:
            break


if __name__ == "__main__":
    main()
