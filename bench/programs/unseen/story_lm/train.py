"""Trains a small language model on synthetic stories.

python train.py --steps 60
"""

import argparse
import copy
import math
import time
from dataclasses import dataclass

import torch
from model import StoryLM
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    vocabulary: int = 16384
    width: int = 512
    heads: int = 8
    layers: int = 6
    context: int = 512
    batch: int = 16
    corpus: int = 4_000_000


SMALL = Config(vocabulary=512, width=64, heads=4, layers=2, context=32, batch=8, corpus=100_000)


def make_corpus(size: int, vocabulary: int, device: torch.device) -> torch.Tensor:
    """A sequence with something to learn: each word is near the word before plus three."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randint(0, 4, (size,), generator=generator)
    starts = torch.randint(0, vocabulary, (size // 32 + 1,), generator=generator)
    place = torch.arange(size)
    return ((starts[place // 32] + 3 * (place % 32) + noise) % vocabulary).to(device)


def get_batch(corpus: torch.Tensor, config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(0, corpus.numel() - config.context - 1, (config.batch, 1), device=corpus.device)
    ids = corpus[starts + torch.arange(config.context + 1, device=corpus.device)]
    return ids[:, :-1], ids[:, 1:]


def smoothed_loss(logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.1) -> torch.Tensor:
    """Cross entropy against targets that keep a little probability for every word."""
    vocabulary = logits.shape[-1]
    one_hot = F.one_hot(targets, vocabulary).float()
    wanted = one_hot * (1.0 - smoothing) + smoothing / vocabulary
    log_probabilities = F.log_softmax(logits.float(), dim=-1)
    return -(wanted * log_probabilities).sum(dim=-1).mean()


def clip_gradients(model: nn.Module, limit: float) -> float:
    total = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            total += parameter.grad.norm().item() ** 2
    total = math.sqrt(total)
    if total > limit:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(limit / (total + 1e-6))
    return total


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float) -> None:
    weights = model.state_dict()
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            value.copy_(value * decay + weights[name] * (1.0 - decay))


def learning_rate(step: int, steps: int, peak: float = 1e-3, warmup: int = 10) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


@torch.no_grad()
def evaluate(model: nn.Module, corpus: torch.Tensor, config: Config, batches: int = 4) -> float:
    losses = []
    for inputs, targets in (get_batch(corpus, config) for _ in range(batches)):
        with torch.autocast(corpus.device.type, torch.bfloat16, enabled=corpus.is_cuda):
            logits = model(inputs)
        losses.append(F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()))
    return torch.stack(losses).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="small sizes (the default without a GPU)")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = SMALL if args.small or device.type == "cpu" else Config()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")

    corpus = make_corpus(config.corpus, config.vocabulary, device)
    model = StoryLM(config.vocabulary, config.width, config.heads, config.layers, config.context).to(device)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=device.type == "cuda")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters on {device}")

    began = time.perf_counter()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        inputs, targets = get_batch(corpus, config)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(inputs)
        loss = smoothed_loss(logits, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip_gradients(model, 1.0)
        optimizer.step()
        update_average(average, model, 0.99)
        if step % args.log_every == 0 or step == args.steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f} norm {norm:.3f}")

    print(f"validation loss {evaluate(model, corpus, config):.4f} averaged {evaluate(average, corpus, config):.4f}")
    print(f"finished in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
