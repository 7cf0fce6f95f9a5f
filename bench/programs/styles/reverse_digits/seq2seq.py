"""GRU encoder-decoder with Luong attention that learns to reverse digit strings (after the PyTorch tutorial)."""
import random

import torch
import torch.nn as nn
from torch import optim

PAD, SOS, EOS = 0, 1, 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class EncoderRNN(nn.Module):
    def __init__(self, vocab, hidden_size, dropout_p=0.0):
        super(EncoderRNN, self).__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab, hidden_size)
        self.gru = nn.GRUCell(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout_p)

    def forward(self, input):
        # input: (batch, time)
        embedded = self.dropout(self.embedding(input))
        hidden = torch.zeros(input.size(0), self.hidden_size).to(device)
        outputs = torch.zeros(input.size(0), 0, self.hidden_size).to(device)
        for t in range(input.size(1)):
            hidden = self.gru(embedded[:, t], hidden)
            outputs = torch.cat((outputs, hidden.unsqueeze(1)), dim=1)
        return outputs, hidden


class LuongAttention(nn.Module):
    def __init__(self, hidden_size):
        super(LuongAttention, self).__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, query, keys):
        scores = torch.einsum("bh,bth->bt", query, self.Wa(keys))
        weights = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
        weights = weights / weights.sum(dim=1, keepdim=True)
        return torch.einsum("bt,bth->bh", weights, keys)


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, vocab):
        super(AttnDecoderRNN, self).__init__()
        self.embedding = nn.Embedding(vocab, hidden_size)
        self.attention = LuongAttention(hidden_size)
        self.gru = nn.GRUCell(2 * hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, vocab)

    def forward(self, encoder_outputs, hidden, target):
        decoder_input = torch.full((target.size(0),), SOS, dtype=torch.long, device=device)
        logits = []
        for t in range(target.size(1)):
            context = self.attention(hidden, encoder_outputs)
            embedded = self.embedding(decoder_input)
            hidden = self.gru(torch.cat((embedded, context), dim=1), hidden)
            logits.append(self.out(hidden))
            decoder_input = target[:, t]  # teacher forcing
        return torch.stack(logits, dim=1)


def make_pair(length, max_len):
    digits = [random.randint(3, 12) for _ in range(length)]
    return digits + [EOS] + [PAD] * (max_len - length), digits[::-1] + [EOS] + [PAD] * (max_len - length)


def get_batch(pairs, batch_size):
    chosen = [random.choice(pairs) for _ in range(batch_size)]
    x = torch.zeros(batch_size, len(chosen[0][0]), dtype=torch.long, device=device)
    y = torch.zeros(batch_size, len(chosen[0][0]), dtype=torch.long, device=device)
    for i, (src, tgt) in enumerate(chosen):
        for j in range(len(src)):
            x[i, j] = src[j]
            y[i, j] = tgt[j]
    return x, y


def masked_loss(logits, target):
    loss = 0
    count = 0
    for t in range(target.size(1)):
        mask = target[:, t] != PAD
        if mask.sum().item() == 0:
            continue
        logp = torch.log_softmax(logits[:, t], dim=-1)
        nll = -logp.gather(1, target[:, t : t + 1]).squeeze(1)
        loss = loss + (nll * mask).sum()
        count = count + mask.sum()
    return loss / count


def train(n_iters=30, hidden_size=128, print_every=10):
    random.seed(0)
    torch.manual_seed(0)
    pairs = [make_pair(random.randint(4, 16), 16) for _ in range(2000)]
    encoder = EncoderRNN(16, hidden_size).to(device)
    decoder = AttnDecoderRNN(hidden_size, 16).to(device)
    params = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = optim.Adam(params, lr=0.003)
    losses = []
    for i in range(1, n_iters + 1):
        x, y = get_batch(pairs, 64)
        enc, hidden = encoder(x)
        loss = masked_loss(decoder(enc, hidden, y), y)
        optimizer.zero_grad()
        loss.backward()
        for p in params:
            norm = p.grad.norm()
            if norm > 1.0:
                p.grad.mul_(1.0 / norm)
        optimizer.step()
        losses.append(loss.item())
        if i % print_every == 0:
            print("%d %.4f" % (i, sum(losses[-print_every:]) / print_every))
    return losses


if __name__ == "__main__":
    train()
