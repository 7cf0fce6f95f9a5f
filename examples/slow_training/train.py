"""Trains a small model, slowly. README.md lists the performance problems. Try: tilewright agent "speed up train.py"

    python train.py --steps 100
"""

import argparse

import torch
from kernels import CrossEntropy
from model import ON_CPU, ON_GPU, Sizes, SoundModel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


def recordings(sizes: Sizes, count: int) -> TensorDataset:
    """Frames around the vector of their sound, with noise."""
    vectors = torch.randn(sizes.sounds, sizes.features)
    labels = torch.randint(0, sizes.sounds, (count, sizes.frames))
    return TensorDataset(vectors[labels] + 0.5 * torch.randn(count, sizes.frames, sizes.features), labels)


def train(model: SoundModel, loader: DataLoader, device: torch.device) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    total = 0.0
    for step, (frames, labels) in enumerate(loader):
        frames = frames.to(device)
        labels = labels.to(device)
        loss = CrossEntropy.apply(model(frames), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 20 == 0:
            print(f"step {step:4d} loss {loss.item():.4f}")
    print(f"mean loss {total / len(loader):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="201; without a GPU 61")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="small sizes; without a GPU they are the default")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = ON_CPU if given.small or device.type == "cpu" else ON_GPU
    steps = given.steps or sizes.steps
    data = recordings(sizes, sizes.batch * min(steps, 8))
    sampler = RandomSampler(data, replacement=True, num_samples=sizes.batch * steps)
    model = SoundModel(sizes).to(device)
    train(model, DataLoader(data, batch_size=sizes.batch, sampler=sampler), device)


if __name__ == "__main__":
    main()
