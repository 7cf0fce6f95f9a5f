"""Fits a new classification head on a backbone that stays as it is.

python main.py --steps 40
"""

import argparse

import torch
from backbone import Classifier
from data import Leaves, make_pictures
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def settings(small: bool) -> dict:
    if small:
        return {"pictures": 512, "size": 32, "batch": 16, "channels": (24, 48), "depths": (1, 1), "classes": 10}
    return {"pictures": 8192, "size": 96, "batch": 128, "channels": (96, 192, 384), "depths": (2, 2, 4), "classes": 10}


def setup(seed: int) -> torch.device:
    torch.manual_seed(seed)
    # so that two runs can be compared
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_loader(config: dict, first: int, steps: int, seed: int, device: torch.device) -> DataLoader:
    pictures, labels = make_pictures(config["pictures"], config["size"], config["classes"], seed + first)
    leaves = Leaves(pictures, labels, steps * config["batch"], seed + first)
    return DataLoader(leaves, batch_size=config["batch"], pin_memory=device.type == "cuda", num_workers=0)


def train(model: Classifier, loader: DataLoader, device: torch.device, log_every: int = 10) -> None:
    # only the head learns; the backbone keeps its weights
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=2e-3, fused=device.type == "cuda")
    model.train()
    for step, (pictures, labels) in enumerate(loader):
        pictures = pictures.to(device, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        logits = model(pictures)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % log_every == 0 or step == len(loader) - 1:
            print(f"step {step:4d} loss {loss.item():.4f}")


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    hits = torch.zeros((), device=device)
    for pictures, labels in loader:
        pictures = pictures.to(device, non_blocking=True, memory_format=torch.channels_last)
        hits += (model(pictures).argmax(dim=1) == labels.to(device, non_blocking=True)).sum()
    return hits.item() / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="small sizes (the default without a GPU)")
    args = parser.parse_args()

    device = setup(args.seed)
    config = settings(args.small or device.type == "cpu")
    model = Classifier(config["channels"], config["depths"], config["classes"])
    model = model.to(device, memory_format=torch.channels_last)
    train(model, make_loader(config, 0, args.steps, args.seed, device), device)
    accuracy = evaluate(model, make_loader(config, 1, 2, args.seed, device), device)
    print(f"accuracy on new pictures {accuracy:.3f}")


if __name__ == "__main__":
    main()
