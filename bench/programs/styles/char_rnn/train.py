# Character-level language model: an LSTM written by hand, trained by plain SGD.
import argparse
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument('--steps', type=int, default=30)
parser.add_argument('--hidden', type=int, default=128)
parser.add_argument('--layers', type=int, default=2)
parser.add_argument('--seq', type=int, default=48)
parser.add_argument('--batch', type=int, default=16)
args = parser.parse_args()

torch.manual_seed(1234)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

text = ''.join(chr(97 + (i * i + 3 * i) % 26) if i % 7 else ' ' for i in range(20000))
vocab = sorted(set(text))
stoi = {c: i for i, c in enumerate(vocab)}
data = torch.tensor([stoi[c] for c in text])
V = len(vocab)


class LSTMCell(nn.Module):
    def __init__(self, n_in, n_hidden):
        super(LSTMCell, self).__init__()
        self.i2h = nn.Linear(n_in, 4 * n_hidden)
        self.h2h = nn.Linear(n_hidden, 4 * n_hidden)
        self.n_hidden = n_hidden

    def forward(self, x, state):
        h, c = state
        gates = self.i2h(x) + self.h2h(h)
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class CharRNN(nn.Module):
    def __init__(self, vocab_size, n_hidden, n_layers):
        super(CharRNN, self).__init__()
        self.vocab_size = vocab_size
        self.n_hidden = n_hidden
        self.cells = nn.ModuleList([LSTMCell(vocab_size if k == 0 else n_hidden, n_hidden) for k in range(n_layers)])
        self.decoder = nn.Linear(n_hidden, vocab_size)

    def forward(self, tokens):
        batch, steps = tokens.shape
        state = [(torch.zeros(batch, self.n_hidden).to(tokens.device), torch.zeros(batch, self.n_hidden).to(tokens.device))
                 for _ in self.cells]
        outputs = []
        for t in range(steps):
            x = torch.zeros(batch, self.vocab_size).to(tokens.device)
            x.scatter_(1, tokens[:, t].unsqueeze(1), 1.0)
            for k, cell in enumerate(self.cells):
                state[k] = cell(x, state[k])
                x = state[k][0]
            outputs.append(self.decoder(x))
        return torch.stack(outputs, dim=1)


model = CharRNN(V, args.hidden, args.layers).to(device)
criterion = nn.CrossEntropyLoss()
lr = 0.5
total_loss = 0.
for step in range(args.steps):
    start = torch.randint(0, len(data) - args.seq - 1, (args.batch,))
    x = torch.stack([data[s:s + args.seq] for s in start]).to(device)
    y = torch.stack([data[s + 1:s + 1 + args.seq] for s in start]).to(device)

    model.zero_grad()
    out = model(x)
    loss = criterion(out.view(-1, V), y.view(-1))
    loss.backward()

    # clip, so that gradients do not explode
    total_norm = 0
    for p in model.parameters():
        param_norm = p.grad.data.norm(2)
        total_norm += param_norm.item() ** 2
    total_norm = total_norm ** (1. / 2)
    clip_coef = 1.0 / (total_norm + 1e-6)
    if clip_coef < 1:
        for p in model.parameters():
            p.grad.data.mul_(clip_coef)

    for p in model.parameters():
        p.data.add_(p.grad.data, alpha=-lr)

    total_loss += loss.item()
    if step % 10 == 9:
        print('step %d loss %.4f' % (step, total_loss / 10))
        total_loss = 0.
