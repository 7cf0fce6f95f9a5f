"""Trains a small model, slowly. README.md lists the performance problems. Try: tilewright agent "speed up train.py"

    python train.py --steps 100
"""

import argparse

import torch
from kernels import CrossEntropy
from model import ON_CPU, ON_GPU, Sizes, SoundModel
from torch.utils.data import DataLoader, TensorDataset


def recordings(sizes: Sizes, count: int) -> TensorDataset:
    """Frames around the vector of their sound, with noise."""
    vectors = torch.randn(sizes.sounds, sizes.features)
    labels = torch.randint(0, sizes.sounds, (count, sizes.frames))
    return TensorDataset(vectors[labels] + 0.5 * torch.randn(count, sizes.frames, sizes.features), labels)


def train(model: SoundModel, loader: DataLoader, steps: int, device: torch.device) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batches = iter(loader)
    mean = None
    for step in range(steps):
        frames, labels = next(batches)
        frames = frames.to(device)
        labels = labels.to(device)
        loss = CrossEntropy.apply(model(frames), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d} loss {mean:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="small sizes; without a GPU they are the default")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = ON_CPU if given.small or device.type == "cpu" else ON_GPU
    data = recordings(sizes, sizes.batch * min(given.steps, 8))
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=sizes.batch * given.steps)
    model = SoundModel(sizes).to(device)
    train(model, DataLoader(data, batch_size=sizes.batch, sampler=sampler), given.steps, device)


if __name__ == "__main__":
    main()
