"""Embeds batches of sentences and finds the nearest of a set of known ones."""
import argparse
import random

import numpy as np
import torch

import encoder


class Service:
    def __init__(self, device):
        self.device = device
        self.model = encoder.SentenceEncoder().to(device)
        self.model.eval()

    def pad(self, sentences):
        longest = max(len(s) for s in sentences)
        tokens = torch.zeros(len(sentences), longest, dtype=torch.long)
        mask = torch.zeros(len(sentences), 1, longest)
        for i, s in enumerate(sentences):
            for j, token in enumerate(s):
                tokens[i, j] = token
                mask[i, 0, j] = 1
        return tokens.to(self.device), mask.to(self.device)

    def embed(self, sentences):
        tokens, mask = self.pad(sentences)
        hidden = self.model(tokens, mask)
        pooled = []
        for b in range(hidden.size(0)):
            n = int(mask[b].sum().item())
            pooled.append(hidden[b, :n].mean(dim=0))
        return torch.stack(pooled)

    def nearest(self, query, known):
        q = query / query.norm(dim=1, keepdim=True)
        k = known / known.norm(dim=1, keepdim=True)
        scores = torch.matmul(q, k.t())
        scores = torch.exp(scores) / torch.sum(torch.exp(scores), dim=1, keepdim=True)
        return scores.detach().cpu().numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    service = Service(device)
    sentence = lambda: [rng.randrange(1, 1000) for _ in range(rng.randrange(5, 40))]
    known = service.embed([sentence() for _ in range(64)])
    best = []
    for request in range(args.requests):
        result = service.nearest(service.embed([sentence() for _ in range(args.batch)]), known)
        best.append(np.argmax(result, axis=1))
        print("request", request, "first", best[-1][:4], "score %.5f" % result.max())


if __name__ == "__main__":
    main()
