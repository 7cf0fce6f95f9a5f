"""Three ways to capture a model: what they write, what they leave, and that a CPU runs the changed text as before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tilewright.program.changes.base import ProgramChange
from tilewright.program.graphs.changes import GRAPH_CHANGES
from tilewright.program.graphs.helpers import GRAPHED, REPLAYED, helper
from tilewright.program.reading.reach import reached_modules
from tilewright.specialists.changing import proposal_of
from tilewright.testing.changes import ChangeContract

REPLAY, GRAPHS, COMPILE = GRAPH_CHANGES
EXAMPLES = Path(__file__).parents[3] / "examples" / "launch_bound"
SERVE = """import argparse

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4)).to("cuda")
model.eval()
with torch.no_grad():
    for _ in range(4):
        model(torch.randn(1, 4))
"""
TRAIN = """import torch as th
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    net = nn.Sequential(nn.Linear(4, 4)).cuda()
    copy = DistributedDataParallel(net)
    optimizer = th.optim.SGD(net.parameters(), 0.1)
    for x in range(4):
        optimizer.zero_grad()
        loss = copy(th.randn(2, 4)).sum()
        loss.backward()


main()
"""
IN_A_LOOP = SERVE.replace("model = nn", "for _ in range(2):\n    model = nn")


def with_helper(text: str, after: str, lines: list[str], blank: str) -> str:
    head, tail = text.split(after)
    return head + after + "\n\n" + "\n".join(lines) + "\n" + blank + tail


class TestReplayedForward(ChangeContract):
    change: ClassVar[ProgramChange] = REPLAY
    changed: ClassVar = {
        "a model for inference": (
            SERVE,
            with_helper(SERVE, "from torch import nn\n", helper(REPLAYED, "torch", 3), "\n").replace(
                "model.eval()\n", "model.eval()\nmodel.forward = _Replayed(model)\n"),
        ),
    }  # fmt: skip
    left: ClassVar = {
        "training": TRAIN.replace("th.randn", "th.rand"),
        "a model in a loop": IN_A_LOOP,
        "saved as a whole": SERVE + 'torch.save(model, "model.pt")\n',
        "compiled": SERVE.replace("with torch", "fast = torch.compile(model)\nwith torch"),
        "captured by hand": SERVE + "graph = torch.cuda.CUDAGraph()\n",
    }


class TestGraphedCallables(ChangeContract):
    change: ClassVar[ProgramChange] = GRAPHS
    changed: ClassVar = {
        "distributed: eleven calls before a capture, and the model before it is wrapped": (
            TRAIN,
            with_helper(TRAIN, "import DistributedDataParallel\n", helper(GRAPHED, "th", 11), "").replace(
                ".cuda()\n", ".cuda()\n    net.forward = _Graphed(net)\n"),
        ),
    }  # fmt: skip
    left: ClassVar = {
        "inference": SERVE,
        "gradients that add up": TRAIN.replace("optimizer.zero_grad()", "if x % 2: optimizer.zero_grad()"),
        "gradients that stay": TRAIN.replace("zero_grad()", "zero_grad(set_to_none=False)"),
        "two calls for one backward pass": TRAIN.replace("copy(th.randn(2, 4))", "net(th.ones(4)) + net(th.ones(4))"),
    }


class TestReduceOverhead(ChangeContract):
    change: ClassVar[ProgramChange] = COMPILE
    changed: ClassVar = {
        "a model": (SERVE, SERVE.replace("model.eval()\n", 'model.eval()\nmodel.compile(mode="reduce-overhead")\n'))
    }
    left: ClassVar = {
        "distributed": TRAIN,
        "captured by hand": SERVE + "graph = torch.cuda.CUDAGraph()\n",
        "in a loop": IN_A_LOOP,
    }


def test_the_warm_up_is_longer_if_the_model_is_distributed() -> None:
    short, long = ("\n".join(helper(GRAPHED, "torch", n)) for n in (3, 11))
    assert "num_warmup_iters=3," in short and "num_warmup_iters=11," in long
    assert "WARM_UP" not in short and "MOST" not in short


@pytest.mark.parametrize(("script", "change"), [("serve.py", REPLAY), ("train.py", GRAPHS)])
def test_a_cpu_runs_the_changed_example_as_before(
    script: str, change: ProgramChange, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU there is no graph, so the class calls the model as it is."""
    pytest.importorskip("torch")
    proposal = proposal_of(change, reached_modules(EXAMPLES / script))
    assert proposal is not None
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [script, "--steps", "6"])
    said: list[str] = []
    for text in ((EXAMPLES / script).read_text(), next(iter(proposal.texts.values()))):
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, script, "exec"), names)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and said[0].startswith(("mean", "loss"))
