"""Trains a network on several GPUs (or processes of the CPU) with DistributedDataParallel.

    torchrun --standalone --nproc-per-node 2 examples/data_parallel/train.py [--width 2048] [--steps 40]
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    rank, cuda = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    blocks = (Block(args.width) for _ in range(args.layers))
    network = nn.Sequential(nn.Linear(64, args.width), *blocks, nn.Linear(args.width, 10)).to(device)
    model = DistributedDataParallel(network, device_ids=[rank] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(dist.get_rank())
    inputs, labels = torch.randn(args.batch, 64, generator=draw), torch.randint(10, (args.batch,), generator=draw)
    inputs, labels = inputs.to(device), labels.to(device)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
