import torch
from torch import nn


class PinballLoss(nn.Module):
    """Mean quantile loss over the hours of the horizon and the quantiles."""

    def __init__(self, quantiles: tuple[float, ...]):
        super().__init__()
        self.quantiles = quantiles

    def forward(self, forecast: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = forecast.new_zeros(())
        for hour in range(target.shape[1]):
            for column, quantile in enumerate(self.quantiles):
                error = target[:, hour] - forecast[:, hour, column]
                total = total + torch.maximum(quantile * error, (quantile - 1) * error).mean()
        return total / (target.shape[1] * len(self.quantiles))
