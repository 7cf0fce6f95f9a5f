"""Uses dropout and noise of the default generator."""

import torch
import torch.nn.functional as F
from torch import nn


class Regularised(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(width, width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x):
        x = x + 0.01 * torch.randn_like(x)
        x = self.drop(F.gelu(self.first(x)))
        return F.dropout(self.second(x), 0.2, training=self.training)


device = "cuda" if torch.cuda.is_available() else "cpu"
model = Regularised().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    out = model(torch.randn(8, 32, device=device))
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        print(step, loss.item())
