"""Asserts in each step that the loss is finite."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x))


def train_one(net, opt, x, y):
    loss = F.cross_entropy(net(x), y)
    assert torch.isfinite(loss).all(), "the loss is not finite"  #: data-branch
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()


net = Net().to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
history = []
for _ in range(6):
    x = torch.randn(4, 8, device=device)
    history.append(train_one(net, opt, x, x.argmax(dim=1) % 4))
print(torch.stack(history).tolist())
