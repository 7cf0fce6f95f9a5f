"""What prevents a capture is found by line and kind, and nothing is said of lines that a graph takes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from tilewright.program.graphs.analysis import read_analysis
from tilewright.program.graphs.hazards import ADVICE
from tilewright.testing.rules import ODD

FORWARD = """
import math
import random
import time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(1))
        self.state, self.kept, self.n = None, [], 0

    def forward(self, x, mask=None, lengths=None, k=3, idx: int = 0, names: list = None):
        h = self.layer(x)
        {line}
        return h

net = Net()
for _ in range(3):
    net(torch.randn(2, 4))
"""
PREVENTS = {
    "host-read": (
        "if self.training: n = h.sum().item()", "h.detach().to('cpu')", "h = h.to(torch.device('cpu'))",
        "for i in range(lengths.max()): h = h + i", "h = h[: lengths[0]]", "print(f'{h.mean():.3f}')",
        "h = h * math.sqrt(h.abs().max())", "h = h + max(h[0])", "np.asarray(h)", "y = F.one_hot(lengths)",
        "y = torch.linalg.inv(h)", "h.tolist()", "torch.save(h, 'h.pt')", "z = float(self.scale)",
    ),
    "data-branch": (
        "if (h > 3).any(): h = h * 0.5", "if not torch.isfinite(h).all(): raise ValueError",
        "while h.norm() > 1: h = h / 2", "assert h.min() >= 0", "h = h * 2 if h.sum() > 0 else h",
        "if mask is not None and mask.any(): h = h + 1", "rows = [r for r in h if r[0] > 0]",
    ),
    "data-shape": (
        "h = h[mask]", "h = h[~mask]", "h = h[h > 0.5]", "rows = h.nonzero()", "rows = torch.where(h > 0)[0]",
        "h = torch.masked_select(h, mask)", "u = torch.unique(lengths)", "h = h.repeat_interleave(lengths, dim=0)",
        "good = torch.isfinite(h); y = h[good]",
    ),
    "host-tensor": (
        "w = torch.tensor([1.0, 2.0], device=x.device)", "w = torch.arange(4).to(x.device)", "h = h[:, [0, 2]]",
        "w = torch.zeros(4).cuda()", "w = x.new_tensor([1.0, 2.0])", "w = torch.from_numpy(np.ones(4)).to(x.device)",
        "mask = mask.to('cuda')",
    ),
    "changed-address": (
        "self.state = h if self.state is None else self.state + h", "self.kept.append(h)", "self.scale.data = h.mean()",
    ),
    "baked-value": ("self.n += 1", "self.n = self.n + 1", "h = h * time.time()"),
    "random-state": (
        "h = h * random.random()", "h = h + np.random.rand()", "torch.manual_seed(3)",
        "h = h + torch.rand(1)", "h = h + torch.rand(4, generator=self.g, device=h.device)",
    ),
    "synchronisation": ("torch.cuda.synchronize()", "self.event.synchronize()"),
}  # fmt: skip
PASSES = (
    "if x.shape[0] > 2: h = h * 2", "if mask is not None: h = h.masked_fill(mask, 0.0)", "if self.training: h = h + 1",
    "if k > 2: h = h + 1", "if idx == 1: h = h * 2", "if names: h = h + 1", "assert h.dim() == 2, h.shape",
    "h = torch.where(h > 0, h, -h)", "print('shape', h.shape, len(h))", "w = torch.arange(h.shape[1], device=h.device)",
    "outputs = [h]; outputs.append(h * 2); h = torch.stack(outputs).sum(0)", "h = h.to(torch.float16)",
    "h = h.add(x); h = self.layer(h).add(x)", "q = self.query(h)", "m = h.new_full((2, 2), float('-inf')).triu(1)",
    "h = torch.utils.checkpoint.checkpoint(self.layer, h, use_reentrant=False).to(self.device)",
    "h = h / math.sqrt(h.size(-1))", "h = torch.cat([h, x] if mask is None else [h], dim=-1)",
    "b, d = h.shape; h = h.view(b, d // 2, 2)",
    "w = torch.arange(4).to(torch.float32)", "h[mask] = 0.0", "h = h.repeat_interleave(2, dim=0)",
    "h = h.repeat_interleave(lengths, dim=0, output_size=8)", "h = h[: x.shape[0] // 2]", "h = h + torch.rand_like(h)",
    "h = F.dropout(h, 0.1, training=self.training)", "y = F.one_hot(lengths, num_classes=4)", "self.last = h",
    "for i, row in enumerate(h): h = h + i * row", "h = h if h.dtype == torch.float32 else h.float()",
    "if h.device.type == 'cuda': h = h + 1", "self.scale.data.mul_(0.5)", "n = len(names) if names else 0",
    "if torch.cuda.is_available(): h = h + 1", "h = h * math.sqrt(h.shape[-1])", "if isinstance(h, tuple): h = h[0]",
    "if torch.cuda.is_current_stream_capturing() is False: h.sum().item()",
)  # fmt: skip


def kinds_at(tmp_path: Path, text: str) -> list[tuple[int, str]]:
    (script := tmp_path / "program.py").write_text(text)
    return [(each.line, each.kind) for each in read_analysis(script).hazards]


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize("kind", PREVENTS)
def test_what_prevents_a_capture_is_found(kind: str, tmp_path: Path) -> None:
    for line in PREVENTS[kind]:
        text = FORWARD.replace("{line}", line)
        assert kinds_at(tmp_path, text) == [(line_of(text, line), kind)], line


def test_what_a_graph_takes_is_left_out(tmp_path: Path) -> None:
    wrong = {line: found for line in PASSES if (found := kinds_at(tmp_path, FORWARD.replace("{line}", line)))}
    assert not wrong


def test_every_kind_has_a_remedy() -> None:
    assert set(PREVENTS) <= set(ADVICE)


PROGRAM = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4))
optimizer = torch.optim.{optimizer}
sched = torch.optim.lr_scheduler.StepLR(optimizer, 10)
losses = []

{functions}
for epoch in range(2):
    {loop}
"""
STEPS: dict[str, tuple[str, str, Sequence[str]]] = {
    "the function that a loop calls": (
        "def step(x):\n    loss = model(x).sum()\n    loss.backward()\n    return loss.item()",
        "step(torch.randn(2, 4))", ["host-read"]),
    "a function that runs an epoch is no step": (
        "def run(data):\n    for x in data:\n        loss = model(x).sum()\n        loss.backward()\n"
        "        losses.append(loss.item())",
        "run([torch.randn(2, 4)])", []),
    "an epoch that calls a step": (
        "def step(x):\n    model(x).sum().backward()\n    sched.step()\n"
        "def run(data):\n    for x in data:\n        step(x)\n    print(model[0].weight.sum().item())",
        "run([torch.randn(2, 4)])", ["baked-value"]),
    "the number of the step": (
        "def step(x, n):\n    model(x * n).sum().backward()", "step(torch.randn(2, 4), epoch)", ["baked-value"]),
    "code of the loop stays outside": ("", "print(model(torch.randn(2, 4)).sum().item())", []),
    "a helper of the step": (
        "def check(h):\n    return h.max().item()\ndef step(x):\n    h = model(x)\n    check(h)\n    return h",
        "step(torch.randn(2, 4))", ["host-read"]),
    "a batch that the step moves": (
        "def step(x):\n    x = x.to('cuda', non_blocking=True)\n    return model(x)", "step(torch.randn(2, 4))",
        ["host-tensor"]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_the_step_is_found(name: str, tmp_path: Path) -> None:
    functions, loop, kinds = STEPS[name]
    text = PROGRAM.format(optimizer="SGD(model.parameters(), 0.1)", functions=functions, loop=loop)
    assert [kind for _, kind in kinds_at(tmp_path, text)] == kinds


@pytest.mark.parametrize(
    ("optimizer", "refused"),
    [("SGD(model.parameters(), 0.1)", False), ("Adam(model.parameters())", True),
     ("AdamW(model.parameters(), capturable=True)", False), ("RMSprop(model.parameters(), capturable=False)", True)],
)  # fmt: skip
def test_optimizers_that_count_on_the_host_are_named(optimizer: str, refused: bool, tmp_path: Path) -> None:
    function = "def step(x):\n    model(x).sum().backward()\n    optimizer.step()"
    found = kinds_at(tmp_path, PROGRAM.format(optimizer=optimizer, functions=function, loop="step(torch.ones(2, 4))"))
    assert [kind for _, kind in found] == (["optimizer"] if refused else [])


def test_the_model_may_be_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FORWARD.partition("net = Net()")[0].replace("{line}", "h.cpu()"))
    (script := tmp_path / "run.py").write_text("from net import Net\nnet = Net()\nfor _ in range(2):\n    net(1)\n")
    (hazard,) = read_analysis(script).hazards
    assert (hazard.place, hazard.kind, hazard.in_forward) == ("net.py:18", "host-read", True)
    assert str(hazard).startswith("net.py:18: h.cpu() reads values on the host (host-read); keep the value on the GPU")


def test_a_program_without_a_step_says_so(tmp_path: Path) -> None:
    (script := tmp_path / "once.py").write_text("import torch\nprint(torch.ones(3).sum().item())\n")
    found = read_analysis(script)
    assert not found.hazards
    assert found.no_step.startswith("once.py has no step that could be captured: no loop calls a model or a function")


def test_it_survives_every_text(tmp_path: Path) -> None:
    odd = (
        "def f(:", "\x00", "class A(A): pass\nfor _ in x: A()", "def f(): f()\nfor _ in x: f()",
        "import torch\nclass N(torch.nn.Module):\n def forward(*a, **k): return N()(a)\nfor _ in a: N()",
    )  # fmt: skip
    for text in (*ODD, *odd, textwrap.dedent(FORWARD)):
        (script := tmp_path / "odd.py").write_bytes(text.encode() if isinstance(text, str) else text)
        read_analysis(script)
