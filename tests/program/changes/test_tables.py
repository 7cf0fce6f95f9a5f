# ruff: noqa: E501 (a source in one line reads better in a table)
"""Each change: sources before and after, sources that it must leave, and equal results when both are executed."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass

import pytest
import torch
from tests.program.changes.executing import outputs, read, rewritten, same

from tilewright.program.changes import change_of

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
MATH = "import math\n" + HEAD
TRAIN = """
torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(6)]
"""


@dataclass(frozen=True)
class Row:
    change: str
    before: str
    after: str
    """The new text without the head; or a part of the reason, for a text that is left."""
    head: str = HEAD
    runs: bool = False
    """Whether the text runs on a CPU; then what it prints must be the same."""
    first: str = ""
    """What stands above the head in the new text."""
    call: str = ""
    """An expression of x, a float64 tensor, whose value and gradient must be the same."""


RIGHT = (
    Row("unused_gradients", """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def act(self, x, action=None):
        logits = self.layer(x)
        if action is None:
            action = logits.softmax(-1).multinomial(1)
        return action, logits.logsumexp(-1), logits

    def forward(self, x):
        return self.layer(x)


torch.manual_seed(0)
agent = Agent()
values, total = [], 0
for step in range(3):
    action, value, _ = agent.act(torch.ones(2, 3))
    values.append(value.detach())
    total += action.sum()
    agent.act(torch.ones(2, 3), action)[1].sum().backward()
print(values, total)
""", """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def act(self, x, action=None):
        logits = self.layer(x)
        if action is None:
            action = logits.softmax(-1).multinomial(1)
        return action, logits.logsumexp(-1), logits

    def forward(self, x):
        return self.layer(x)


torch.manual_seed(0)
agent = Agent()
values, total = [], 0
for step in range(3):
    with torch.no_grad():
        action, value, _ = agent.act(torch.ones(2, 3))
    values.append(value.detach())
    total += action.sum()
    agent.act(torch.ones(2, 3), action)[1].sum().backward()
print(values, total)
""", runs=True),
    Row("filled_on_host", """
def batch(rows, device):
    x = torch.zeros(len(rows), 3, dtype=torch.long, device=device)
    n = torch.empty(len(rows), device=device)
    for i, row in enumerate(rows):
        n[i] = len(row)
        for j in range(len(row)):
            x[i][j] = row[j]
    return x, n


print(batch([[1, 2], [3], [4, 5, 6]], "cpu"))
""", """
def batch(rows, device):
    x = torch.zeros(len(rows), 3, dtype=torch.long)
    n = torch.empty(len(rows))
    for i, row in enumerate(rows):
        n[i] = len(row)
        for j in range(len(row)):
            x[i][j] = row[j]
    n = n.to(device)
    x = x.to(device)
    return x, n


print(batch([[1, 2], [3], [4, 5, 6]], "cpu"))
""", runs=True),
    Row("counts_at_once", """
scores, labels = torch.randn(9, 5), torch.randint(5, (9,))
right = 0
for i in range(len(labels)):
    if scores[i].argmax() == labels[i]:
        right += 1
print(right)
""", """
scores, labels = torch.randn(9, 5), torch.randint(5, (9,))
right = 0
right += int((scores[:len(labels)].flatten(1).argmax(1) == labels.flatten()).sum())
print(right)
""", runs=True),
    Row("counts_at_once", """
def hits(scores, labels, mask):
    n = 0
    for s, y, m in zip(scores, labels, mask):
        guess = s > 0.25
        if m and not bool(guess) == bool(y.item()):
            n += 1
    return n


print(hits(torch.randn(40), torch.randint(2, (40, 1)), torch.rand(40) > 0.2))
""", """
def hits(scores, labels, mask):
    n = 0
    n += int((mask.flatten().bool() & (~((scores.flatten() > 0.25).bool().flatten() == labels.bool().flatten()))).sum())
    return n


print(hits(torch.randn(40), torch.randint(2, (40, 1)), torch.rand(40) > 0.2))
""", runs=True),
    Row("rows_together", """
def embedding(times, dim):
    rows = []
    for t in times:
        angles = t.float() * torch.exp(-torch.arange(dim, device=times.device).float())
        rows.append(torch.cat([torch.cos(angles), torch.sin(angles)]))
    return torch.stack(rows)


print(embedding(torch.arange(5), 3).sum(0))
""", """
def embedding(times, dim):
    def rows_row(t):
        angles = t.float() * torch.exp(-torch.arange(dim, device=times.device).float())
        return torch.cat([torch.cos(angles), torch.sin(angles)])
    return torch.vmap(rows_row)(times)


print(embedding(torch.arange(5), 3).sum(0))
""", runs=True),
    Row("rows_together", "x = torch.arange(12.0).view(4, 3)\nprint(torch.stack([row / row.sum() for row in x], dim=1))\n",
        "x = torch.arange(12.0).view(4, 3)\nprint(torch.vmap(lambda row: row / row.sum(), out_dims=1)(x))\n", runs=True),
    Row("rows_together", """
data, n = torch.arange(50), 4
starts = torch.randint(len(data) - n, (6,))
print(torch.stack([data[i + 1 : i + n + 1].float() for i in starts]))
""", """
data, n = torch.arange(50), 4
starts = torch.randint(len(data) - n, (6,))
print(data[starts.unsqueeze(1) + torch.arange(n, device=starts.device) + 1].float())
""", runs=True),
    Row("rows_together", """
data = np.arange(50, dtype=np.uint16)
starts = torch.randint(len(data) - 4, (6,))
print(torch.stack([torch.from_numpy(data[i : i + 4].astype(np.int64)) for i in starts]))
""", """
data = np.arange(50, dtype=np.uint16)
starts = torch.randint(len(data) - 4, (6,))
print(torch.from_numpy(
    data[(starts.unsqueeze(1) + torch.arange(4, device=starts.device)).cpu().numpy()].astype(np.int64)
))
""", "import numpy as np\n" + HEAD, runs=True),
    Row("element_reads", """
def played(choices, players):
    done = []
    for i, player in enumerate(players):
        done.append((player, choices[i].item()))
    return done


print(played(torch.arange(3), "abc"))
""", """
def played(choices, players):
    done = []
    choices_cpu = choices.cpu() if torch.is_tensor(choices) else choices
    for i, player in enumerate(players):
        done.append((player, choices_cpu[i].item()))
    return done


print(played(torch.arange(3), "abc"))
""", runs=True),
    Row("constants_once", """
def schedule(n):
    steps = np.linspace(0, 1, n)
    return np.cos(steps) ** 2


x, y = torch.arange(4.0), torch.ones(4)
for step in range(3):
    a, b = x.to("cpu"), y.cpu().to("cpu")
    betas = torch.tensor(schedule(4), dtype=torch.float32)
    print(((a + b) * betas).sum())
""", """
def schedule(n):
    steps = np.linspace(0, 1, n)
    return np.cos(steps) ** 2


x, y = torch.arange(4.0), torch.ones(4)
betas = torch.tensor(schedule(4), dtype=torch.float32)
for step in range(3):
    a, b = x.to("cpu"), y.cpu().to("cpu")
    print(((a + b) * betas).sum())
""", "import numpy as np\n" + HEAD, runs=True),
    Row("constants_once", """
x, y = torch.arange(4.0), torch.ones(4) > 0
for step in range(3):
    a, b = x.to("cpu"), y.to("cpu")
    print((a * b).sum())
""", """
x, y = torch.arange(4.0), torch.ones(4) > 0
a, b = x.to("cpu"), y.to("cpu")
for step in range(3):
    print((a * b).sum())
""", runs=True),
    Row("host_synchronisation", TRAIN + """
total = 0.0
for step, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.detach().cpu().numpy()
    if step % 4 == 0:
        print(step, total)
print(total, type(total))
""", TRAIN + """
total = 0.0
for step, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.detach()
    if step % 4 == 0:
        print(step, (total.cpu().numpy()[()] if torch.is_tensor(total) else total))
total = total.cpu().numpy()[()] if torch.is_tensor(total) else total
print(total, type(total))
""", runs=True),
    Row("foreach_parameters", TRAIN + """
kept = {name: p.detach().clone() for name, p in model.named_parameters()}
with torch.no_grad():
    for name, p in model.named_parameters():
        kept[name] = kept[name] * 0.9 + p * 0.1
print(kept)
""", TRAIN + """
kept = {name: p.detach().clone() for name, p in model.named_parameters()}
with torch.no_grad():
    all_p = [p for name, p in model.named_parameters()]
    all_value = [kept[name] for name, p in model.named_parameters()]
    torch._foreach_copy_(all_value, torch._foreach_add(torch._foreach_mul(all_value, 0.9), all_p, alpha=0.1))
print(kept)
""", runs=True),
    Row("cross_entropy_by_hand", """
logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
probs = F.softmax(logits, dim=-1)
picked = torch.gather(probs, 2, targets.unsqueeze(-1)).squeeze(-1)
print(f"{float(-torch.log(picked).mean()):.4f}")
""", """
logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
print(f"{float(F.cross_entropy(logits.flatten(0, -2), targets.flatten())):.4f}")
""", runs=True),
    Row("fused_optimizer", "o = torch.optim.AdamW(p, lr=1e-3)\n", "o = torch.optim.AdamW(p, lr=1e-3, fused=True)\n"),
    Row("fused_optimizer", "o = torch.optim.SGD(p, foreach=False, lr=0.1)\n", "o = torch.optim.SGD(p, fused=True, lr=0.1)\n"),
    Row("repeated_reads", """
best = float("inf")
for step in range(4):
    loss = torch.tensor(3.0) / (step + 1)
    if loss.item() < best:
        best = loss.item()
    if step % 2:
        print(step, round(loss.item(), 3), best)
""", """
best = float("inf")
for step in range(4):
    loss = torch.tensor(3.0) / (step + 1)
    loss_value = loss.item()
    if loss_value < best:
        best = loss_value
    if step % 2:
        print(step, round(loss_value, 3), best)
""", runs=True),
    Row("growing_tensors", """
def f(n):
    out = None
    for i in range(n):
        row = torch.ones(1, 2) * i
        out = row if out is None else torch.cat([out, row], dim=0)
    return out


print(f(0), f(1), f(3))
""", """
def f(n):
    out = None
    out_parts = [] if out is None else [out]
    for i in range(n):
        row = torch.ones(1, 2) * i
        out_parts.append(row.clone())
    out = torch.cat(out_parts, dim=0) if out_parts else None
    return out


print(f(0), f(1), f(3))
""", runs=True),
    Row("no_gradients", """
import numpy as np


def right(scores, labels):
    return float(np.mean((scores > 0) == labels))


def evaluate(model, batches):
    model.eval()
    scores, labels = [], []
    losses = torch.zeros(len(batches))
    for k, (x, y) in enumerate(batches):
        out = model(x)
        losses[k] = F.cross_entropy(out, y).item()
        scores.append(out[:, 0].detach().cpu().numpy())
        labels.append(y.numpy() == 0)
    model.train()
    return right(np.concatenate(scores), np.concatenate(labels)), losses.mean().item()


print(evaluate(model, batches))
F.cross_entropy(model(batches[0][0]), batches[0][1]).backward()
print(model.weight.grad.sum())
""", """
import numpy as np


def right(scores, labels):
    return float(np.mean((scores > 0) == labels))


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    scores, labels = [], []
    losses = torch.zeros(len(batches))
    for k, (x, y) in enumerate(batches):
        out = model(x)
        losses[k] = F.cross_entropy(out, y).item()
        scores.append(out[:, 0].detach().cpu().numpy())
        labels.append(y.numpy() == 0)
    model.train()
    return right(np.concatenate(scores), np.concatenate(labels)), losses.mean().item()


print(evaluate(model, batches))
F.cross_entropy(model(batches[0][0]), batches[0][1]).backward()
print(model.weight.grad.sum())
""", HEAD + TRAIN, runs=True),
    Row("rows_together", """
def load_a_batch_of_windows(sequence_of_tokens, how_many):
    starting_positions_of_windows = torch.randint(len(sequence_of_tokens) - how_many, (8,))
    windows = torch.stack([sequence_of_tokens[begin:begin + how_many] for begin in starting_positions_of_windows])
    return windows


print(load_a_batch_of_windows(torch.arange(90), 4))
""", """
def load_a_batch_of_windows(sequence_of_tokens, how_many):
    starting_positions_of_windows = torch.randint(len(sequence_of_tokens) - how_many, (8,))
    windows = sequence_of_tokens[
        starting_positions_of_windows.unsqueeze(1) + torch.arange(how_many, device=starting_positions_of_windows.device)
    ]
    return windows


print(load_a_batch_of_windows(torch.arange(90), 4))
""", runs=True),
    Row("cross_entropy_by_hand", """
def loss_of(logits_of_all_tokens_in_the_batch, labels_of_all_tokens_in_the_batch_as_numbers):
    log_probabilities = torch.log_softmax(logits_of_all_tokens_in_the_batch, dim=-1)
    total = -log_probabilities.gather(1, labels_of_all_tokens_in_the_batch_as_numbers.unsqueeze(1)).squeeze(1).mean()
    return total


print(loss_of(torch.arange(12.0).view(4, 3) % 5, torch.tensor([0, 1, 2, 0])))
""", """
def loss_of(logits_of_all_tokens_in_the_batch, labels_of_all_tokens_in_the_batch_as_numbers):
    total = F.cross_entropy(logits_of_all_tokens_in_the_batch, labels_of_all_tokens_in_the_batch_as_numbers)
    return total


print(loss_of(torch.arange(12.0).view(4, 3) % 5, torch.tensor([0, 1, 2, 0])))
""", runs=True),
    Row("fused_optimizer", "o = torch.optim.SGD(\n    (p),  # all\n)\n", "o = torch.optim.SGD(\n    (p), fused=True,  # all\n)\n"),
    Row("fused_optimizer", "o = Adam((p))\n", "o = Adam((p), fused=True)\n", HEAD + "from torch.optim import Adam\n"),
    Row("gradients_to_none", "o.zero_grad(set_to_none=False)\n", "o.zero_grad()\n"),
    Row("float32_matmul_precision", "for x in y:\n    pass\n", '\ntorch.set_float32_matmul_precision("high")\nfor x in y:\n    pass\n',
        "import torch\n", runs=False),
    Row("float32_matmul_precision", "x = 1\nimport torch\nfor x in y:\n    pass\n", 'x = 1\nimport torch\n\ntorch.set_float32_matmul_precision("high")\nfor x in y:\n    pass\n',
        "import os\n"),
    Row("cudnn_benchmark", "\nm = torch.nn.Conv2d(3, 4, 3)\nfor x in y:\n    m(x)\n",
        "\ntorch.backends.cudnn.benchmark = True\n\nm = torch.nn.Conv2d(3, 4, 3)\nfor x in y:\n    m(x)\n", "import torch\n"),
    Row("pinned_copies", """
loader = torch.utils.data.DataLoader(data, batch_size=4)
for i, (x, y) in enumerate(loader):
    x, y = x.to(device), y.cuda()
""", """
loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=torch.cuda.is_available())
for i, (x, y) in enumerate(loader):
    x, y = x.to(device, non_blocking=True), y.cuda(non_blocking=True)
"""),
    Row("pinned_copies", """
loader = DataLoader(data, pin_memory=False)
for batch in loader:
    batch = {k: v.to("cuda:0") for k, v in batch.items()}
""", """
loader = DataLoader(data, pin_memory=torch.cuda.is_available())
for batch in loader:
    batch = {k: v.to("cuda:0", non_blocking=True) for k, v in batch.items()}
""", HEAD + "from torch.utils.data import DataLoader\n"),
    Row("made_on_device", "def f(n, device):\n    return torch.zeros(n, 3).to(device)\n",
        "def f(n, device):\n    return torch.zeros(n, 3, device=device)\n"),
    Row("made_on_device", "for n in ns:\n    m = torch.arange(n).cuda()\n", 'for n in ns:\n    m = torch.arange(n, device="cuda")\n'),
    Row("host_synchronisation", TRAIN + """
total, seen = 0.0, 0
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.item() * x.size(0)  # mean of the batch
    seen += x.size(0)
print(total / seen, type(total))
""", TRAIN + """
total, seen = 0.0, 0
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.detach().double() * x.size(0)  # mean of the batch
    seen += x.size(0)
total = total.item() if torch.is_tensor(total) else total
print(total / seen, type(total))
""", runs=True),
    Row("host_synchronisation", TRAIN + """
losses = []
for step, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x), y)
    losses.append(loss.item())
    loss += 1
print(losses)""", TRAIN + """
losses = []
for step, (x, y) in enumerate(batches):
    loss = F.cross_entropy(model(x), y)
    losses.append(loss.detach().clone())
    loss += 1
losses[:] = [value.item() if torch.is_tensor(value) else value for value in losses]
print(losses)""", runs=True),
    Row("host_synchronisation", TRAIN + """
def accuracy():
    right = 0
    for step, (x, y) in enumerate(batches):
        right += (model(x).argmax(1) == y).sum().item()
        torch.cuda.synchronize
        if step % 3 == 0:
            print(step, right)
    return right


print(accuracy())
""", TRAIN + """
def accuracy():
    right = 0
    for step, (x, y) in enumerate(batches):
        right += (model(x).argmax(1) == y).sum()
        torch.cuda.synchronize
        if step % 3 == 0:
            print(step, int(right))
    right = right.item() if torch.is_tensor(right) else right
    return right


print(accuracy())
""", runs=True),
    Row("host_synchronisation", TRAIN + """
mean = None
for step in range(6):
    x, y = batches[step]
    loss = F.cross_entropy(model(x), y)
    mean = loss.item() if mean is None else 0.9 * mean + 0.1 * loss.item()
    if step % 2 == 0:
        print(f"step {step:4d} loss {mean:.4f}", repr(mean))
""", TRAIN + """
mean = None
for step in range(6):
    x, y = batches[step]
    loss = F.cross_entropy(model(x), y)
    mean = loss.detach().double() if mean is None else 0.9 * mean + 0.1 * loss.detach().double()
    if step % 2 == 0:
        print(f"step {step:4d} loss {float(mean):.4f}", repr(float(mean)))
mean = mean.item() if torch.is_tensor(mean) else mean
""", runs=True),
    Row("pinned_copies", "def f(loader, device):\n    batches = iter(loader)\n    while True:\n        x, y = next(batches)\n        x = x.to(device)\n        g(x)\n",
        "def f(loader, device):\n    batches = iter(loader)\n    while True:\n        x, y = next(batches)\n        x = x.to(device, non_blocking=True)\n        g(x)\n"),
    Row("host_synchronisation", "for x in y:\n    f(x)\n    torch.cuda.synchronize()  # wait\n", "for x in y:\n    f(x)\n"),
    Row("functions_by_hand", "def f(x):\n    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))\n",
        'def f(x):\n    return F.gelu(x, approximate="tanh")\n', MATH, call="f(x)"),
    Row("functions_by_hand", "def f(x):\n    # new\n    inner = 0.7978845608028654 * x * (1.0 + 0.044715 * x * x)\n    return x * 0.5 * (torch.tanh(inner) + 1)\n",
        'def f(x):\n    # new\n    return F.gelu(x, approximate="tanh")\n', MATH, call="f(x)"),
    Row("functions_by_hand", "def f(x):\n    cdf = 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))\n    return x * cdf\n",
        "def f(x):\n    return F.gelu(x)\n", MATH, call="f(x)"),
    Row("functions_by_hand", "def f(x, g):\n    return (x * x.sigmoid()) * g\n", "def f(x, g):\n    return (F.silu(x)) * g\n", MATH, call="f(x, 2)"),
    Row("functions_by_hand", "def f(x):\n    h = x + 1\n    return h / (1 + torch.exp(-h))\n", "def f(x):\n    h = x + 1\n    return F.silu(h)\n", MATH, call="f(x)"),
    Row("functions_by_hand", """
def f(x):
    shifted = x - x.max(dim=-1, keepdim=True).values
    e = torch.exp(shifted)
    return e / e.sum(dim=-1, keepdim=True)
""", "\ndef f(x):\n    return F.softmax(x, dim=-1)\n", MATH, call="f(x)"),
    Row("functions_by_hand", """
class Norm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.w, self.b, self.eps = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        y = (x - mean) / torch.sqrt(var + self.eps)
        return y * self.w + self.b
""", """
class Norm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.w, self.b, self.eps = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n)), eps

    def forward(self, x):
        y = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        return y * self.w + self.b
""", MATH, call="Norm(5).double()(x)"),
    Row("functions_by_hand", "def f(x, w):\n    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))\n",
        "def f(x, w):\n    return w * F.rms_norm(x, x.shape[-1:], eps=1e-06)\n", MATH, call="f(x, 2)"),
    Row("no_gradients", """
def accuracy(model, batches):
    model.eval()
    right = 0
    for x, y in batches:
        right += (model(x).argmax(1) == y).sum().item()
    return right / len(batches)
""", """
@torch.no_grad()
def accuracy(model, batches):
    model.eval()
    right = 0
    for x, y in batches:
        right += (model(x).argmax(1) == y).sum().item()
    return right / len(batches)
"""),
    Row("no_gradients", "def main():\n    model.eval()\n    print(model(x))\n\n\nif __name__ == '__main__':\n    main()\n",
        "@torch.inference_mode()\ndef main():\n    model.eval()\n    print(model(x))\n\n\nif __name__ == '__main__':\n    main()\n"),
    Row("no_gradients", "m = nn.Linear(3, 3)\nm.eval()\nfor x in xs:\n    print(m(x))\n",
        "m = nn.Linear(3, 3)\nm.eval()\ntorch.set_grad_enabled(False)\nfor x in xs:\n    print(m(x))\n"),
    Row("constants_once", "def f(n, xs):\n    for x in xs:\n        m = torch.tril(torch.ones(n, n)).bool()  # causal\n        g(x, m)\n",
        "def f(n, xs):\n    m = torch.tril(torch.ones(n, n)).bool()\n    for x in xs:\n        g(x, m)\n"),
    Row("bf16_autocast", """
for x, y in batches:
    optimizer.zero_grad()
    out = model(
        x
    )
    # the loss
    loss = F.cross_entropy(out, y)
    loss.backward()
""", """
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(
            x
        )
        # the loss
        loss = F.cross_entropy(out, y)
    loss.backward()
"""),
    Row("compiled_model", "class N(nn.Module):\n    pass\n\n\nm = N().cuda()\no = torch.optim.SGD(m.parameters())\nm = m.to(d)\nfor x in y:\n    m(x)\n",
        "class N(nn.Module):\n    pass\n\n\nm = N().cuda()\no = torch.optim.SGD(m.parameters())\nm = m.to(d)\nm.compile()\nfor x in y:\n    m(x)\n"),
    Row("functions_by_hand", "def f(x):\n    return x - torch.logsumexp(x, dim=-1, keepdim=True)\n", "def f(x):\n    return F.log_softmax(x, dim=-1)\n", MATH, call="f(x)"),
    Row("functions_by_hand", "def f(x):\n    return torch.exp(x) / torch.sum(torch.exp(x), dim=1, keepdim=True)\n", "def f(x):\n    return F.softmax(x, dim=1)\n", MATH, call="f(x)"),
    Row("functions_by_hand", "def f(x, y):\n    return ((x - y) ** 2).mean()\n", "def f(x, y):\n    return F.mse_loss(x, y)\n", MATH, call="f(x, x.detach().flip(0))"),
    Row("functions_by_hand", """
def f(x, w, b):
    mean = x.mean(-1, keepdim=True)
    var = x.var(-1, keepdim=True, unbiased=False)
    return w * (x - mean) / torch.sqrt(var + 1e-6) + b
""", "\ndef f(x, w, b):\n    return w * F.layer_norm(x, x.shape[-1:], eps=1e-06) + b\n", MATH, call="f(x, torch.arange(5.0), 1)"),
    Row("cross_entropy_by_hand", """
def f(x):
    y = torch.tensor([1, 0, 3, 2])
    logp = F.log_softmax(x.view(-1, x.size(-1)), dim=-1)
    one_hot = F.one_hot(y.repeat(3), x.size(-1)).float()
    loss = -(one_hot * logp).sum(dim=-1).mean()
    return loss
""", """
def f(x):
    y = torch.tensor([1, 0, 3, 2])
    loss = F.cross_entropy(x.view(-1, x.size(-1)), y.repeat(3))
    return loss
""", call="f(x)"),
    Row("cross_entropy_by_hand", """
def f(x):
    y = torch.zeros(3, 4).long()
    logp = torch.log_softmax(x, -1)  # over the classes
    return -logp.gather(-1, y.unsqueeze(-1)).mean()
""", "\ndef f(x):\n    y = torch.zeros(3, 4).long()\n    return F.cross_entropy(x.flatten(0, -2), y.flatten())\n", call="f(x)"),
    Row("cross_entropy_by_hand", """
def f(x):
    x, y = x[0], torch.tensor([1, 0, 3, 2])
    e = torch.exp(x - x.max(1, keepdim=True)[0])
    p = e / e.sum(1, keepdim=True)
    return -torch.log(p[torch.arange(len(y)), y]).sum()
""", """
def f(x):
    x, y = x[0], torch.tensor([1, 0, 3, 2])
    return F.cross_entropy(x, y, reduction="sum")
""", call="f(x)"),
    Row("foreach_parameters", TRAIN + """
for x, y in batches:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    total = 0
    for p in model.parameters():
        if p.grad is None:
            continue
        norm = p.grad.data.norm(2)
        total += norm.item() ** 2
    print(f"{total ** 0.5:.4f}")
    for p in model.parameters():  # a step
        p.data.add_(p.grad.data, alpha=-0.1)
print([f"{p.sum().item():.4f}" for p in model.parameters()])
""", TRAIN + """
for x, y in batches:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    total = 0
    all_p_grad = [p.grad.data for p in model.parameters() if p.grad is not None]
    all_norm = torch.stack(torch._foreach_norm(all_p_grad))
    total += (all_norm ** 2).double().sum().item()
    print(f"{total ** 0.5:.4f}")
    all_p = [p.data for p in model.parameters()]
    all_p_grad = [p.grad.data for p in model.parameters()]
    torch._foreach_add_(all_p, all_p_grad, alpha=-0.1)
print([f"{p.sum().item():.4f}" for p in model.parameters()])
""", runs=True),
    Row("foreach_parameters", TRAIN + """
class Adam:
    def __init__(self, params):
        self.params, self.t = list(params), 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    def step(self):
        self.t += 1
        with torch.no_grad():
            for i, p in enumerate(self.params):
                g = p.grad
                if g is None:
                    continue
                self.m[i] = 0.9 * self.m[i] + (1 - 0.9) * g
                self.v[i].mul_(0.99).addcmul_(g, g, value=1 - 0.99)
                p -= 0.1 * (self.m[i] / (1 - 0.9 ** self.t)) / (torch.sqrt(self.v[i]) + 1e-8)
                p.grad.zero_()


adam = Adam(model.parameters())
for x, y in batches:
    F.cross_entropy(model(x), y).backward()
    adam.step()
print([f"{p.sum().item():.4f}" for p in model.parameters()])
""", TRAIN + """
class Adam:
    def __init__(self, params):
        self.params, self.t = list(params), 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    def step(self):
        self.t += 1
        with torch.no_grad():
            all_p_grad = [p.grad for i, p in enumerate(self.params) if p.grad is not None]
            all_value = [self.m[i] for i, p in enumerate(self.params) if p.grad is not None]
            torch._foreach_copy_(all_value, torch._foreach_add(torch._foreach_mul(all_value, 0.9), all_p_grad, alpha=(1 - 0.9)))
            all_value_ = [self.v[i] for i, p in enumerate(self.params) if p.grad is not None]
            torch._foreach_mul_(all_value_, 0.99)
            torch._foreach_addcmul_(all_value_, all_p_grad, all_p_grad, value=1 - 0.99)
            all_p = [p for i, p in enumerate(self.params) if p.grad is not None]
            torch._foreach_sub_(all_p, torch._foreach_div(torch._foreach_mul(torch._foreach_div(all_value, 1 - 0.9 ** self.t), 0.1), torch._foreach_add(torch._foreach_sqrt(all_value_), 1e-8)))
            torch._foreach_zero_(all_p_grad)


adam = Adam(model.parameters())
for x, y in batches:
    F.cross_entropy(model(x), y).backward()
    adam.step()
print([f"{p.sum().item():.4f}" for p in model.parameters()])
""", runs=True),
    Row("foreach_parameters", "norm = torch.sqrt(sum((p.grad ** 2).sum() for p in m.parameters()))\n",
        "norm = torch.sqrt((torch.stack(torch._foreach_norm([p.grad for p in m.parameters()])) ** 2).sum())\n"),
    Row("foreach_parameters", "def ema(new, old, d):\n    for a, b in zip(old.parameters(), new.parameters()):\n        a.data.mul_(d).add_(b.data, alpha=1 - d)\n",
        "def ema(new, old, d):\n    all_a = [a.data for a, b in zip(old.parameters(), new.parameters())]\n    torch._foreach_mul_(all_a, d)\n    all_b = [b.data for a, b in zip(old.parameters(), new.parameters())]\n    torch._foreach_add_(all_a, all_b, alpha=1 - d)\n"),
    Row("cached_constants", """
class M(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, self.up = width, nn.Linear(width, width)

    def forward(self, x):
        pe = torch.zeros(x.size(1), self.width)
        position = torch.arange(x.size(1)).unsqueeze(1)
        pe[:, 0::2] = torch.sin(position * 0.1)
        return x * pe.to(x.dtype)
""", """
@functools.lru_cache(maxsize=8)
def _pe_once(x_size_1, width, x_dtype):
    pe = torch.zeros(x_size_1, width)
    position = torch.arange(x_size_1).unsqueeze(1)
    pe[:, 0::2] = torch.sin(position * 0.1)
    return pe.to(x_dtype)


class M(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, self.up = width, nn.Linear(width, width)

    def forward(self, x):
        pe = _pe_once(x.size(1), self.width, x.dtype)
        return x * pe
""", call="M(5)(x)", first="import functools\n"),
    Row("cached_constants", """
class M(nn.Module):
    def forward(self, x):
        return x * torch.tensor([1.0, 2.0]).sum().to(x.device)
""", """
@functools.lru_cache(maxsize=8)
def _forward_once(x_device):
    return torch.tensor([1.0, 2.0]).sum().to(x_device)


class M(nn.Module):
    def forward(self, x):
        return x * _forward_once(x.device)
""", call="M()(x)", first="import functools\n"),
    Row("late_prints", TRAIN + """
for epoch in range(2):
    for step, (x, y) in enumerate(batches):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"step {step} of {len(batches)}: {loss.item():.4f}")
        if step % 3 == 0:
            print("three")
    print("epoch", epoch)
""", TRAIN + """
for epoch in range(2):
    late_prints = []
    for step, (x, y) in enumerate(batches):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        late_prints.append(lambda step=step, value1=len(batches), loss=loss.detach().clone(): print(f"step {step} of {value1}: {loss.item():.4f}"))
        if len(late_prints) == 10:
            while late_prints:
                late_prints.pop(0)()
        if step % 3 == 0:
            while late_prints:
                late_prints.pop(0)()
            print("three")
    while late_prints:
        late_prints.pop(0)()
    print("epoch", epoch)
""", runs=True),
    Row("host_synchronisation", TRAIN + """
history = {"loss": [], "n": 0}
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    history["loss"].append(loss.item())
print(history)
""", TRAIN + """
history = {"loss": [], "n": 0}
for x, y in batches:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    history["loss"].append(loss.detach().clone())
history["loss"][:] = [value.item() if torch.is_tensor(value) else value for value in history["loss"]]
print(history)
""", runs=True),
    Row("channels_last", "class N(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.c = nn.Conv2d(3, 4, 3)\n\n\nclass Loss(nn.Module):\n    pass\n\n\ndef net(w):\n    return nn.Sequential(N(), nn.ReLU()).eval()\n\n\nm = net(3).cuda()\nloss = Loss()\n",
        "class N(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.c = nn.Conv2d(3, 4, 3)\n\n\nclass Loss(nn.Module):\n    pass\n\n\ndef net(w):\n    return nn.Sequential(N(), nn.ReLU()).eval()\n\n\nm = net(3).cuda().to(memory_format=torch.channels_last)\nloss = Loss()\n"),
    Row("channels_last", "class N(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.c = nn.Conv2d(3, 4, 3)\n\n    def forward(self, x):\n        return self.c(x).view(x.size(0), -1)\n\n\nm = N().cuda()\n",
        "class N(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.c = nn.Conv2d(3, 4, 3)\n\n    def forward(self, x):\n        return self.c(x).reshape(x.size(0), -1)\n\n\nm = N().cuda().to(memory_format=torch.channels_last)\n"),
    Row("compiled_function", "def loss(a, b):\n    d = (a - b).abs()\n    return torch.where(d < 1, 0.5 * d * d, d - 0.5).mean()\n\n\nfor x in y:\n    loss(x, x)\n",
        "@torch.compile\ndef loss(a, b):\n    d = (a - b).abs()\n    return torch.where(d < 1, 0.5 * d * d, d - 0.5).mean()\n\n\nfor x in y:\n    loss(x, x)\n"),
    Row("no_gradients", "class G(nn.Module):\n    def generate(self, idx, n):\n        for _ in range(n):\n            nxt = self(idx).argmax(-1, keepdim=True)\n            idx = torch.cat((idx, nxt), dim=1)\n        return idx\n\n\ndef train(m):\n    m(x).backward()\n",
        "class G(nn.Module):\n    @torch.no_grad()\n    def generate(self, idx, n):\n        for _ in range(n):\n            nxt = self(idx).argmax(-1, keepdim=True)\n            idx = torch.cat((idx, nxt), dim=1)\n        return idx\n\n\ndef train(m):\n    m(x).backward()\n"),
    Row("no_gradients", "def main():\n    train()\n    model.eval()\n    for x in xs:  # test\n        print(model(x).mean())\n\n\ndef train():\n    loss.backward()\n",
        "def main():\n    train()\n    model.eval()\n    with torch.no_grad():\n        for x in xs:  # test\n            print(model(x).mean())\n\n\ndef train():\n    loss.backward()\n"),
    Row("no_gradients", "class S:\n    def __init__(self):\n        self.m = nn.Linear(3, 3)\n        self.m.eval()\n\n\nif __name__ == '__main__':\n    print(S().m(x))\n",
        "torch.set_grad_enabled(False)\n\nclass S:\n    def __init__(self):\n        self.m = nn.Linear(3, 3)\n        self.m.eval()\n\n\nif __name__ == '__main__':\n    print(S().m(x))\n"),
    Row("rows_by_index", "def f(x):\n    ones = F.one_hot(torch.tensor([2, 0]), 3).float()\n    return ones @ x[:, 0]\n",
        "def f(x):\n    return F.embedding(torch.tensor([2, 0]), x[:, 0])\n", call="f(x.float())"),
    Row("debugging_off", "import gc\ntorch.autograd.set_detect_anomaly(True)\nfor x in y:\n    f(x)\n    if torch.cuda.is_available():\n        torch.cuda.empty_cache()\n    gc.collect()\n",
        "import gc\nfor x in y:\n    f(x)\n"),
    Row("loader_workers", "from torch.utils.data import DataLoader, Dataset\n\n\nclass D(Dataset):\n    def __getitem__(self, i):\n        return torch.from_numpy(self.a[i]).float()\n\n\nd = D()\nl = DataLoader(d, batch_size=4)\n",
        "from torch.utils.data import DataLoader, Dataset\n\n\nclass D(Dataset):\n    def __getitem__(self, i):\n        return torch.from_numpy(self.a[i]).float()\n\n\nd = D()\nl = DataLoader(d, batch_size=4, num_workers=4)\n"),
    Row("growing_tensors", "all_ = torch.empty(0)\nfor n in range(4):\n    all_ = torch.cat([all_, torch.ones(2) * n], dim=0)\nprint(all_)\n",
        "all_ = torch.empty(0)\nall__parts = [all_]\nfor n in range(4):\n    all__parts.append((torch.ones(2) * n).clone())\nall_ = torch.cat(all__parts, dim=0)\nprint(all_)\n", runs=True),
    Row("made_on_device", "def f(n, x):\n    return torch.arange(0, n).unsqueeze(0).to(x.device)\n",
        "def f(n, x):\n    return torch.arange(0, n, device=x.device).unsqueeze(0)\n"),
)  # fmt: skip

LEFT = (
    Row("unused_gradients", "class N(nn.Module):\n    pass\n\n\nm = N()\nfor x in y:\n    a = m(x)\n    a.sum().backward()\n", "may differentiate 'a'"),
    Row("unused_gradients", "class N(nn.Module):\n    pass\n\n\nm = N()\nfor x in y:\n    a = m(x)\n    b = a + 1\n    b.backward()\n", "may differentiate 'a'"),
    Row("unused_gradients", "class N(nn.Module):\n    pass\n\n\nm = N()\nfor x in y:\n    a = m(x)\n    f(a)\n    z.backward()\n", "may differentiate 'a'"),
    Row("unused_gradients", "class N(nn.Module):\n    pass\n\n\nm = N()\nfor x in y:\n    a = m(x)\n    z.backward()\n", "for what it changes"),
    Row("unused_gradients", "class N(nn.Module):\n    def forward(self, x):\n        self.h = x\n        return x\n\n\nm = N()\nfor x in y:\n    a = m(x)\n    print(a.item())\n    z.backward()\n", "N.forward may keep a tensor"),
    Row("unused_gradients", "class N(nn.Module):\n    pass\n\n\nm = N()\nfor x in y:\n    a = m(x)\n    print(a.item())\n", ""),
    Row("unused_gradients", "class N(nn.Module):\n    pass\n\n\nm = N()\nfor x in y:\n    self.a = m(x)\n    z.backward()\n", "in an attribute"),
    Row("filled_on_host", "x = torch.zeros(3, device=d)\nfor i in y:\n    x[i] = x[i - 1] + 1\n", "reads 'x' in the loop"),
    Row("filled_on_host", "a = torch.ones(3)\nx = torch.zeros(3, device=d)\nfor i in y:\n    x[i] = a.sum()\n", "stores a tensor"),
    Row("filled_on_host", "x = torch.zeros(3, device=d)\nfor i in y:\n    a = i * b\n    x[i] = a\n", "stores a tensor"),
    Row("filled_on_host", "x = torch.zeros(3, device=d)\nfor i in y:\n    x[i:] = 1\n", ""),
    Row("filled_on_host", "x = torch.zeros(3, device=d)\nf(x)\nfor i in y:\n    x[i] = 1\n", ""),
    Row("filled_on_host", "def f(y, d):\n    x = torch.zeros(3, device=d)\n    for i in y:\n        x[i] = 1\n        if i:\n            return\n    return x\n", "loop may exit"),
    Row("filled_on_host", 'x = torch.zeros(3, device="cpu")\nfor i in y:\n    x[i] = 1\n', ""),
    Row("counts_at_once", "n = 0\nfor a, b in zip(words, other):\n    if a == b:\n        n += 1\n", "does not show that its rows are of a tensor"),
    Row("counts_at_once", "x = [1, 2]\nn = 0\nfor a in x:\n    if a == 1:\n        n += 1\n", "no tensor"),
    Row("counts_at_once", "x = torch.ones(4)\nn = 0\nfor a in x:\n    if a > b[0]:\n        n += 1\n", "not known to be the same for each row"),
    Row("counts_at_once", "x = torch.ones(4)\nn = 0\nfor a in x:\n    if a > 0:\n        n += 1\nprint(a)\n", "reads 'a' of the loop"),
    Row("counts_at_once", "x = torch.ones(4)\nn = 0\nfor a in x:\n    if f(a) > 0:\n        n += 1\n", "not known for all rows"),
    Row("counts_at_once", "x = torch.ones(4)\nn = torch.zeros(())\nfor a in x:\n    if a > 0:\n        n += 1\n", "known to begin as a number"),
    Row("counts_at_once", "x = torch.ones(4)\nn = 0\nfor i in range(4):\n    if x[i] > 0:\n        n += 2\n", ""),
    Row("counts_at_once", "x = torch.ones(4)\nbest = [1, 2]\nn = 0\nfor i in range(4):\n    if i in best:\n        n += 1\n", "no comparison of two numbers"),
    Row("rows_together", "rows = []\nfor ids in history:\n    rows.append(table(ids).mean(0))\nout = torch.stack(rows)\n", "may differ in size"),
    Row("rows_together", "x = torch.ones(4)\nout = torch.stack([a.item() * b for a in x])\n", "treat rows alike"),
    Row("rows_together", "x = torch.ones(4)\nout = torch.stack([a if a > 0 else -a for a in x])\n", "may branch"),
    Row("rows_together", "x = torch.ones(4).long()\nout = torch.stack([y[a] for a in x])\n", "picks by a row"),
    Row("rows_together", "x = torch.ones(4)\nrows = []\nfor a in x:\n    rows.append(a + 1)\nout = torch.stack(rows)\nprint(rows)\n", "read elsewhere"),
    Row("rows_together", "x = torch.ones(4)\nout = torch.stack([a + torch.rand(3) for a in x])\n", "treat rows alike"),
    Row("rows_together", "starts = [3, 5]\nout = torch.stack([data[i : i + 4] for i in starts])\n", "no tensor"),
    Row("element_reads", "def f(a):\n    for i in range(3):\n        a[i] = a[i].item() + 1\n", "changes 'a'"),
    Row("element_reads", "def f(a, g):\n    for i in range(3):\n        g(a)\n        print(a[i].item())\n", "may change 'a'"),
    Row("element_reads", "def f(a):\n    a = a.cpu()\n    for i in range(3):\n        print(a[i].item())\n", "no tensor of the GPU"),
    Row("element_reads", "def f(a):\n    for i in range(3):\n        print(int(a[i]))\n", ""),
    Row("constants_once", "p = torch.ones(3, requires_grad=True)\nfor x in y:\n    q = p.to(device)\n    g(q)\n", ""),
    Row("constants_once", "p = torch.ones(3)\ng(p)\nfor x in y:\n    q = p.to(device)\n    h(q)\n", ""),
    Row("constants_once", "import random\n\n\ndef f():\n    return random.random()\n\n\nfor x in y:\n    q = torch.tensor(f())\n    h(q)\n", ""),
    Row("constants_once", "for x in y:\n    args.n += 1\n    q = torch.arange(args.n)\n    h(q)\n", "an attribute or an element"),
    Row("foreach_parameters", "kept = {n: p.detach() for n, p in m.named_parameters()}\nfor n, p in m.named_parameters():\n    kept[n] = kept[n] * 0.9 + p.data * 0.1\n", "may be the parameters themselves"),
    Row("fused_optimizer", "o = torch.optim.AdamW(p, foreach=True)\n", "foreach already"),
    Row("fused_optimizer", "o = torch.optim.AdamW(p, foreach=False, capturable=True)\n", "capturable already"),
    Row("repeated_reads", "for x in xs:\n    a = x.sum()\n    print(a.item())\n    a.add_(1)\n    print(a.item())\n", ""),
    Row("repeated_reads", "for x in xs:\n    a = x.sum()\n    print(a.item())\n    step(a)\n    print(a.item())\n", ""),
    Row("repeated_reads", "for x in xs:\n    a = x.sum()\n    print(a.item())\n    a = a + 1\n    print(a.item())\n", ""),
    Row("repeated_reads", "for x in xs:\n    a = x.sum()\n    if x.dim() and a.item() > 0:\n        print(a.item())\n", ""),
    Row("repeated_reads", "a = torch.ones(())\nprint(a.item())\nprint(a.item())\n", ""),
    Row("repeated_reads", "def f(a_value, xs):\n    for a in xs:\n        print(a.item(), a.item())\n", "is taken"),
    Row("growing_tensors", "for n in y:\n    a = n if b is None else torch.cat([a, n])\n", ""),
    Row("growing_tensors", "for n in y:\n    a = m if a is None else torch.cat([a, n])\n", ""),
    Row("growing_tensors", "for n in y:\n    a = n if a is None else torch.cat([a, n])\n    print(a.sum())\n", "in the loop"),
    Row("growing_tensors", "for n in y:\n    a = n if a is not None else torch.cat([a, n])\n", ""),
    Row("no_gradients", "def f(model, xs):\n    model.eval()\n    out = []\n    for x in xs:\n        out.append(model(x))\n    return sum(out)\n\n\nloss.backward()\n", "computes gradients elsewhere"),
    Row("no_gradients", "def f(model, xs):\n    model.eval()\n    out = []\n    for x in xs:\n        out.append(model(x).item())\n    fill(out)\n    return sum(out)\n\n\nloss.backward()\n", "computes gradients elsewhere"),
    Row("no_gradients", "def f(model, xs, out):\n    model.eval()\n    for k, x in enumerate(xs):\n        out[k] = model(x).item()\n\n\nloss.backward()\n", "computes gradients elsewhere"),
    Row("no_gradients", "def g(x):\n    return net(x)\n\n\ndef f(model, x):\n    model.eval()\n    return g(model(x).item())\n\n\nloss.backward()\n", "computes gradients elsewhere"),
    Row("foreach_parameters", "class E:\n    def __init__(self, m):\n        self.kept = {n: p.data for n, p in m.named_parameters()}\n\n    def step(self, m):\n        for n, p in m.named_parameters():\n            self.kept[n] = 0.9 * self.kept[n] + 0.1 * p.data\n", "the parameters themselves"),
    Row("foreach_parameters", "def f(m, steps):\n    kept = dict(m.named_parameters())\n    for _ in range(steps):\n        for n, p in m.named_parameters():\n            kept[n] = 0.9 * kept[n] + 0.1 * p.data\n", "the parameters themselves"),
    Row("cached_constants", "MEAN = [0.1, 0.2]\n\n\ndef forward(x):\n    MEAN.append(0.3)\n    return x - torch.tensor(MEAN).to(x.device)\n", ""),
    Row("cached_constants", "MEAN = [0.1, 0.2]\n\n\ndef forward(x):\n    change(MEAN)\n    return x - torch.tensor(MEAN).to(x.device)\n", ""),
    Row("cached_constants", "def forward(x, mean):\n    return x - torch.tensor(mean).to(x.device)\n", ""),
    Row("fused_optimizer", "o = torch.optim.AdamW(p, **more)\n", "dictionary"),
    Row("fused_optimizer", "e = nn.Embedding(9, 4, sparse=True)\no = torch.optim.SGD(p)\n", "sparse"),
    Row("fused_optimizer", "o = torch.optim.AdamW(p, fused=False)\n", ""),
    Row("fused_optimizer", "class Adam:\n    pass\n\n\no = Adam(p)\n", "", HEAD + "from torch.optim import Adam\n"),
    Row("gradients_to_none", "o.zero_grad(set_to_none=False)\nprint(p.grad)\n", "reads gradients"),
    Row("gradients_to_none", "o.zero_grad()\n", ""),
    Row("float32_matmul_precision", "def f(x):\n    return x @ x\n", ""),
    Row("float32_matmul_precision", 'torch.set_float32_matmul_precision("highest")\nfor x in y:\n    pass\n', ""),
    Row("cudnn_benchmark", "torch.use_deterministic_algorithms(True)\nm = nn.Conv2d(3, 4, 3)\nfor x in y:\n    m(x)\n",
        "deterministic"),
    Row("pinned_copies", "for x in torch.utils.data.DataLoader(d):\n    z = f(x).to('cpu')\n", ""),
    Row("pinned_copies", "data = TensorDataset(x.cuda())\nloader = torch.utils.data.DataLoader(data, 4)\n"
        "for x in loader:\n    x = x.to(device, non_blocking=True)\n", "on the device already"),
    Row("pinned_copies", "loader = torch.utils.data.DataLoader(d, **more)\nfor x in loader:\n"
        "    x = x.to(device, non_blocking=True)\n", "not all visible"),
    Row("pinned_copies", "loader = torch.utils.data.DataLoader(d)\nfor x in loader:\n    x = f(x).to(device)\n", ""),
    Row("made_on_device", "def f(n, device):\n    return torch.randn(n).to(device)\n", "random"),
    Row("made_on_device", "x = torch.zeros(3).to(device)\n", ""),
    Row("made_on_device", "def f(x):\n    return torch.ones(3).to(torch.bfloat16)\n", ""),
    Row("made_on_device", "def f(x, device):\n    return torch.ones(3).to(device, torch.bfloat16)\n", ""),
    Row("host_synchronisation", "for x in y:\n    if x.item() > 3:\n        break\n", "decides a branch"),
    Row("host_synchronisation", "for x in y:\n    loss = f(x)\n    loss.backward()\n    print(loss.item())\n", "used at once"),
    Row("host_synchronisation", "total = 0\nfor x in y:\n    total += g(x).item()\nprint(total)\n", "float or a count"),
    Row("host_synchronisation", "t = 0\nfor x in y:\n    t += x.mean().item()\n    print(t)\n", "in each step"),
    Row("host_synchronisation", "t = start\nfor x in y:\n    t += x.mean().item()\n", "begin as a number"),
    Row("host_synchronisation", "t = 0\n\n\ndef f(y):\n    global t\n    for x in y:\n        t += x.mean().item()\n", "another function"),
    Row("host_synchronisation", "t = 0\nfor x in y:\n    t += x.mean().item()\n    t += g(x)\n", "adds another value"),
    Row("host_synchronisation", "t = 0.0\nfor x in y:\n    t += max(x.mean().item(), 1)\n", "is used in"),
    Row("host_synchronisation", "ls = []\nfor x in y:\n    ls.append(x.mean().item())\n    best = min(ls)\n", "reads 'ls' in the loop"),
    Row("host_synchronisation", "ls = []\nfor x in y:\n    ls.append(x.mean().item())\n    ls.append(x)\n", "another value"),
    Row("host_synchronisation", "try:\n    t = 0\n    for x in y:\n        t += x.mean().item()\nexcept E:\n    print(t)\n", "try"),
    Row("host_synchronisation", "import time\nfor x in y:\n    t = time.time()\n    torch.cuda.synchronize()\n", "measures times"),
    Row("host_synchronisation", "g = torch.cuda.CUDAGraph()\nt = 0\nfor x in y:\n    t += x.mean().item()\n", "CUDA graph"),
    Row("host_synchronisation", "for x in y:\n    z = x.to('cpu', non_blocking=True)\n    torch.cuda.synchronize()\n", "may need the call"),
    Row("made_on_device", "def f(n, device):\n    return torch.zeros(n, pin_memory=True).to(device)\n", ""),
    Row("float32_matmul_precision", "import os\nx = 1\nfor x in y:\n    pass\n", "", "import sys\n"),
    Row("host_synchronisation", "x.item()\n", ""),
    Row("host_synchronisation", "m = 0.0\nfor x in y:\n    m = max(m, x.mean().item())\n", "used at once"),
    Row("host_synchronisation", "m = 0.0\nfor x in y:\n    m = 0.9 * m + g(m) * x.mean().item()\n", "used at once"),
    Row("functions_by_hand", "def f(x):\n    return 0.5 * x * (1 + torch.tanh(0.79 * (x + 0.044715 * x ** 3)))\n", "", MATH),
    Row("functions_by_hand", "def f(x):\n    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)\n", "n − 1", MATH),
    Row("functions_by_hand", "def f(x):\n    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)\n", "", MATH),
    Row("functions_by_hand", "def f(x):\n    return x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + 1e-6)\n", "", MATH),
    Row("functions_by_hand", "def f(x):\n    return x * torch.rsqrt(x.pow(2).mean(-1) + 1e-6)\n", "", MATH),
    Row("functions_by_hand", "def f(x):\n    e = torch.exp(x - x.amax(-1, keepdim=True))\n    return e / e.sum(0, keepdim=True)\n", "", MATH),
    Row("functions_by_hand", "def f(x):\n    return g(x) * torch.sigmoid(g(x))\n", "", MATH),
    Row("functions_by_hand", "def f(x):\n    s = torch.sigmoid(x)\n    x = x + 1\n    return x * s\n", "", MATH),
    Row("functions_by_hand", "def f(x):\n    s = torch.sigmoid(x)\n    x.add_(1)\n    return x * s\n", "", MATH),
    Row("functions_by_hand", "def sigmoid(x):\n    return x\n\n\ndef f(x):\n    return x * sigmoid(x)\n", "", MATH),
    Row("no_gradients", "def f(model, xs):\n    model.eval()\n    return [model(x) for x in xs]\n\n\nloss.backward()\n", "computes gradients elsewhere"),
    Row("no_gradients", "def f(model, xs):\n    model.eval()\n    loss(model(xs)).backward()\n", "computes gradients in line"),
    Row("no_gradients", "@torch.no_grad()\ndef f(model, xs):\n    model.eval()\n    return model(xs).item()\n", ""),
    Row("no_gradients", "def f(model, xs):\n    model.eval()\n    for x in xs:\n        yield model(x)\n", "generator"),
    Row("constants_once", "for n in ns:\n    m = torch.arange(n)\n    g(m)\n", "depends on 'n'"),
    Row("constants_once", "for n in ns:\n    m = torch.arange(5)\n    m[0] = n\n", "changed in the loop"),
    Row("constants_once", "for n in ns:\n    m = torch.arange(5)\n    m += n\n", "bound in several"),
    Row("constants_once", "for n in ns:\n    m = torch.arange(5)\n    torch.add(n, n, out=m)\n", "in place"),
    Row("constants_once", "h = []\nfor n in ns:\n    m = torch.tensor(h)\n    h.append(n)\n", "list with a name"),
    Row("constants_once", "w = torch.ones(3)\nfor n in ns:\n    m = torch.tril(w)\n    w.mul_(2)\n", "depends on 'w'"),
    Row("constants_once", "for n in ns:\n    m = torch.tensor([random()])\n    g(m)\n", ""),
    Row("constants_once", "for n in ns:\n    m = torch.tensor(rows[0])\n    g(m)\n", "attribute or an element"),
    Row("bf16_autocast", "for x in y:\n    loss = x.sum()\n    loss.backward()\n", "no call of a model"),
    Row("compiled_model", "class N(nn.Module):\n    pass\n\n\nfor i in y:\n    m = N()\n", "in a loop"),
    Row("compiled_model", "class N(nn.Module):\n    pass\n\n\nm = torch.compile(N())\n", ""),
    Row("functions_by_hand", "def f(x):\n    return torch.log(F.softmax(x, dim=1) + 1e-8)\n", "", MATH),
    Row("cross_entropy_by_hand", "def f(x, y):\n    return -F.log_softmax(x, dim=0).gather(1, y.unsqueeze(1)).mean()\n", ""),
    Row("cross_entropy_by_hand", "def f(x, y):\n    return -torch.log(F.softmax(x, 1) + 1e-8).gather(1, y.unsqueeze(1)).mean()\n", ""),
    Row("cross_entropy_by_hand", "def f(x, y):\n    return F.log_softmax(x, 1).gather(1, y.unsqueeze(1)).mean()\n", ""),
    Row("cross_entropy_by_hand", "def f(x, y):\n    logp = F.log_softmax(x, 1)\n    x.zero_()\n    return -logp.gather(1, y.unsqueeze(1)).mean()\n", "may change what they use"),
    Row("foreach_parameters", "for p in m.parameters():\n    p.data.add_(p.grad, alpha=rate(p))\n", "another number for each"),
    Row("foreach_parameters", "for p in m.parameters():\n    p.data.add_(p.grad, alpha=rate())\n", "is called for each"),
    Row("foreach_parameters", "def f(ps):\n    for p in ps:\n        p.data -= p.grad\n\n\nf(m.parameters())\n", "a generator"),
    Row("foreach_parameters", "for p in m.parameters():\n    p.data.add_(p.grad)\nprint(p)\n", "of the loop"),
    Row("foreach_parameters", "for p in m.parameters():\n    if p.grad.norm() > 1:\n        p.grad.mul_(0.5)\n", "decides a branch for each"),
    Row("foreach_parameters", "for p in m.parameters():\n    nn.init.normal_(p)\n", ""),
    Row("foreach_parameters", "for x, y in data:\n    x += y\n", ""),
    Row("cached_constants", "class M(nn.Module):\n    def forward(self, x, n):\n        m = torch.tril(torch.ones(n, n)).to(x.device)\n        m[0] = x.mean()\n        return x * m\n", "changes 'm'"),
    Row("cached_constants", "class M(nn.Module):\n    def forward(self, x, n):\n        m = torch.tril(torch.ones(n, n)).to(x.device)\n        return m\n", "to the caller"),
    Row("cached_constants", "class M(nn.Module):\n    def forward(self, x, n):\n        m = torch.tril(torch.rand(n, n)).to(x.device)\n        return x * m\n", ""),
    Row("cached_constants", "class M(nn.Module):\n    def forward(self, x):\n        m = torch.tensor(self.rows).exp().to(x.device)\n        return x * m\n", ""),
    Row("cached_constants", "def once(n):\n    m = torch.tril(torch.ones(n, n)).cuda()\n    return x * m\n", ""),
    Row("late_prints", "import time\nfor x in y:\n    x.backward()\n    t = time.time()\n    print(x.item(), t)\n", "measures a time"),
    Row("late_prints", "for x in y:\n    print(x.item(), flush=True)\n", "flushed"),
    Row("late_prints", "for x in y:\n    print(x.item(), z)\n    z += x\n", "in place"),
    Row("late_prints", "def g():\n    print(1)\n\n\nfor x in y:\n    print(x.item())\n    g()\n", "prints too"),
    Row("late_prints", "for i, x in y:\n    if i % 10 == 0:\n        print(x.item())\n", ""),
    Row("channels_last", "class N(nn.Module):\n    def __init__(self):\n        self.c = nn.Conv2d(3, 4, 3)\n\n\ndef net(w):\n    return N() if w else None\n\n\nm = net(3)\n", ""),
    Row("channels_last", "class N(nn.Module):\n    def __init__(self):\n        self.c = nn.Linear(3, 4)\n\n\nm = N()\n", ""),
    Row("compiled_function", "def loss(a, b):\n    n = torch.randn(3) * a + b * b - a / b\n    return n.mean()\n\n\nfor x in y:\n    loss(x, x)\n", "calls randn"),
    Row("compiled_function", "def rate(a, b):\n    return a * b + a / b - a + b\n\n\nfor x in y:\n    rate(x, x)\n", ""),
    Row("no_gradients", "def main():\n    Trainer().run()\n    model.eval()\n    Trainer().run()\n\n\nclass Trainer:\n    def run(self):\n        loss.backward()\n", "computes gradients in line"),
    Row("rows_by_index", "def f(x):\n    return F.one_hot(x, 3).float() * x\n", ""),
    Row("debugging_off", "for x in y:\n    torch.cuda.empty_cache()\n", "alone"),
    Row("debugging_off", "torch.autograd.set_detect_anomaly(False)\ntorch.cuda.empty_cache()\n", ""),
    Row("loader_workers", "class D(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n        return self.a[i] + torch.rand(1)\n\n\nl = torch.utils.data.DataLoader(D())\n", "has 'rand'"),
    Row("loader_workers", "class D(torch.utils.data.IterableDataset):\n    pass\n\n\nl = torch.utils.data.DataLoader(D())\n", "iterable"),
    Row("loader_workers", "l = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x))\n", ""),
    Row("growing_tensors", "for n in y:\n    a = torch.cat([a, n])\n    f(a)\n", "in the loop"),
    Row("growing_tensors", "for n in y:\n    a = torch.cat([n, a])\n", ""),
    Row("made_on_device", "def f(n, x):\n    return torch.arange(n).sin().to(x.device)\n", ""),
)  # fmt: skip


def printed(text: str) -> str:
    out = io.StringIO()
    torch.manual_seed(1)
    with contextlib.redirect_stdout(out):
        exec(compile(text, "program.py", "exec"), {"__name__": "program"})
    return out.getvalue()


@pytest.mark.parametrize("row", RIGHT, ids=lambda row: row.change)
def test_a_source_is_changed_as_shown(row: Row) -> None:
    change, text = change_of(row.change), row.head + row.before
    new = rewritten(change, text)
    assert new.removeprefix(row.first).removeprefix(row.head).rstrip("\n") == row.after.rstrip("\n")
    assert not change.sites(read(new)), "nothing is left to change"
    windows = text.replace("\n", "\r\n")
    assert rewritten(change, windows) == new.replace("\n", "\r\n")
    if row.runs:
        assert printed(text) == printed(new) != ""
    if row.call:
        before, after = (outputs(each, row.call, {"x": (3, 4, 5)}) for each in (text, new))
        assert same(before, after)


@pytest.mark.parametrize("row", LEFT, ids=lambda row: row.change)
def test_a_source_is_left(row: Row) -> None:
    change, module = change_of(row.change), read(row.head + row.before)
    assert not change.sites(module)
    reasons = [miss.reason for miss in change.near_misses(module)]
    assert row.after in "; ".join(reasons) and bool(reasons) == bool(row.after)
