from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader, Dataset

from model import GPT, GPTConfig


class Characters(Dataset):
    def __init__(self, length: int, config: GPTConfig) -> None:
        generator = torch.Generator().manual_seed(3)
        self.data = torch.randint(0, config.vocab_size, (length,), generator=generator)
        self.block_size = config.block_size

    def __len__(self) -> int:
        return len(self.data) - self.block_size - 1

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        chunk = self.data[i : i + self.block_size + 1]
        return chunk[:-1], chunk[1:]


class Trainer:
    def __init__(self, model: GPT, dataset: Dataset, batch_size: int, steps: int) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.steps = steps
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95))
        self.loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=0)
        self.losses = []

    def run(self) -> None:
        self.model.train()
        for step, batch in enumerate(self.loader):
            if step == self.steps:
                break
            x, y = [t.to(self.device) for t in batch]
            _, loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.losses.append(loss.item())
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.5f}")
        print(f"mean {sum(self.losses) / len(self.losses):.5f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = GPTConfig()
    model = GPT(config)
    Trainer(model, Characters(5000, config), args.batch, args.steps).run()
    model.eval()
    out = model.generate(torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device), 20)
    print("sample", out[0].tolist())


if __name__ == "__main__":
    main()
