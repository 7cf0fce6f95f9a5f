"""Moves each batch to the device inside the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build():
    return nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 2)).to(device)


def update(model, optimizer, criterion, features, labels):
    features, labels = features.to(device), labels.to(device)  #: host-tensor
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(features), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main():
    data = TensorDataset(torch.randn(40, 10), torch.randint(0, 2, (40,)))
    model, criterion = build(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        losses = [update(model, optimizer, criterion, x, y) for x, y in DataLoader(data, batch_size=8)]
        print(epoch, torch.stack(losses).mean().item())


if __name__ == "__main__":
    main()
