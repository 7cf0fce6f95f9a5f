"""Train a small CTC keyword spotter on synthetic tones."""
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from model import Spotter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Tones(Dataset):
    def __init__(self, n=96, seconds=0.5, rate=8000, seed=3):
        gen = random.Random(seed)
        self.items = []
        t = torch.arange(int(seconds * rate)) / rate
        for _ in range(n):
            label = [gen.randrange(1, 20) for _ in range(3)]
            wav = sum(torch.sin(2 * 3.14159 * 120 * l * t) for l in label)
            self.items.append((wav, torch.tensor(label), gen.randrange(20, 32)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    wavs, labels, lengths = zip(*batch)
    return torch.stack(wavs), torch.stack(labels), list(lengths)


def greedy(log_probs):
    ids = log_probs.argmax(-1).cpu().numpy()
    texts = []
    for row in ids:
        prev, text = 0, []
        for s in row:
            if s != prev and s != 0:
                text.append(int(s))
            prev = s
        texts.append(text)
    return texts


def main():
    torch.manual_seed(0)
    loader = DataLoader(Tones(), batch_size=8, shuffle=True, collate_fn=collate)
    model = Spotter().to(DEVICE)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(2):
        seen, errors = 0, 0
        for wav, labels, lengths in loader:
            wav = wav.to(DEVICE)
            labels = labels.to(DEVICE)
            logp = model(wav, lengths)
            loss = F.ctc_loss(
                logp.transpose(0, 1), labels,
                torch.tensor(lengths), torch.full((len(lengths),), 3), zero_infinity=True,
            )
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            for hyp, ref in zip(greedy(logp), labels.tolist()):
                seen += 1
                errors += int(hyp != ref)
        print("epoch", epoch, "loss", float(loss), "wrong", errors, "of", seen)


if __name__ == "__main__":
    main()
