"""Answers batches of requests for recommendations: each brings what a user bought, each gets ten items back.

python serve.py --steps 50
"""

import argparse
import time

import numpy as np
import torch
from scoring import adjust
from torch import nn
from torch.nn import functional as F

Answer = list[list[tuple[int, float]]]


def settings(small: bool) -> dict:
    if small:
        return {"items": 4096, "width": 32, "users": 16, "history": 20}
    return {"items": 262_144, "width": 128, "users": 128, "history": 50}


def make_requests(steps: int, config: dict, seed: int) -> list[list[list[int]]]:
    """Batches of histories as they come out of JSON: lists of item numbers, of different lengths."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(steps):
        lengths = rng.integers(3, config["history"] + 1, config["users"])
        batches.append([rng.choice(config["items"], int(length)).tolist() for length in lengths])
    return batches


class Recommender(nn.Module):
    """Two towers: the items' vectors, and a user's vector made from the items bought."""

    def __init__(self, items: int, width: int):
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.tower = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("popularity", torch.rand(items) * 100.0)

    @property
    def device(self) -> torch.device:
        return self.popularity.device

    def encode(self, histories: list[list[int]]) -> torch.Tensor:
        """The users' vectors."""
        users = []
        for history in histories:
            bought = torch.tensor(history, device=self.device)
            users.append(self.items(bought).mean(dim=0))
        return F.normalize(self.tower(torch.stack(users)), dim=-1)

    def pad(self, histories: list[list[int]], longest: int) -> torch.Tensor:
        padded = np.full((len(histories), longest), -1, dtype=np.int64)
        for row, history in enumerate(histories):
            padded[row, : len(history)] = history
        return torch.from_numpy(padded).to(self.device)

    def forward(self, histories: list[list[int]], longest: int) -> torch.Tensor:
        """The scores of all items for each user."""
        scores = self.encode(histories) @ self.items.weight.t()
        return adjust(scores, self.popularity, self.pad(histories, longest), boost=0.05)


def best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best items of each user, best first, and their scores."""
    values, order = torch.sort(scores, dim=1, descending=True)
    return values[:, :count], order[:, :count]


def to_answer(values: torch.Tensor, items: torch.Tensor) -> Answer:
    answer = []
    for row in range(items.shape[0]):
        recommended = []
        for place in range(items.shape[1]):
            recommended.append((items[row, place].item(), values[row, place].item()))
        answer.append(recommended)
    return answer


@torch.inference_mode()
def serve(model: Recommender, batches: list[list[list[int]]], longest: int, count: int) -> list[Answer]:
    answers = []
    for histories in batches:
        scores = model(histories, longest)
        values, items = best(scores, count)
        answers.append(to_answer(values, items))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="batches of requests")
    parser.add_argument("--count", type=int, default=10, help="recommendations for each user")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="small sizes (the default without a GPU)")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = settings(args.small or device.type == "cpu")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = Recommender(config["items"], config["width"]).to(device).eval()
    batches = make_requests(args.steps, config, args.seed)

    began = time.perf_counter()
    answers = serve(model, batches, config["history"], args.count)
    seconds = time.perf_counter() - began

    for number in (0, len(answers) - 1):
        first = ", ".join(f"{item} ({score:.3f})" for item, score in answers[number][0][:3])
        print(f"batch {number}: first user: {first}")
    total = sum(score for answer in answers for user in answer for _, score in user)
    print(f"{len(answers) * config['users']} users, sum of scores {total:.3f}")
    print(f"{1e3 * seconds / max(1, len(answers)):.2f} ms for a batch")


if __name__ == "__main__":
    main()
