"""The slow training program: it runs on a CPU, it learns, its kernel is right, and its gradient is torch's."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task
from tilewright.verify.check import check_on
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.planning import Scope
from tilewright.verify.schedule import Equipment

FOLDER = Path(__file__).parent.parent / "examples" / "slow_training"
TASK = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
import tilewright as tw
from kernels import softmax

def reference(x):
    part = np.exp(x - x.max(axis=1, keepdims=True))
    return part / part.sum(axis=1, keepdims=True)

def launch(x, y, M, N):
    return tw.Launch(softmax, (M,), (x, y, 1 << (N - 1).bit_length()))

task = tw.Task(
    name="slow_softmax", tensors={{"x": tw.Tensor(("M", "N"), "float32"), "y": tw.Output(("M", "N"), "float32")}},
    reference=reference, launch=launch, flops=lambda M, N: 5 * M * N, independent=("M",),
    space=tw.Space(constants={{}}, shipped={{}}), workloads={{"small": {{"M": 64, "N": 256}}}},
)
"""


def python(*words: str) -> str:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": f"{FOLDER}:{os.environ['PYTHONPATH']}",
    }
    done = subprocess.run([sys.executable, "-B", *words], cwd=FOLDER, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_learns_on_a_cpu() -> None:
    pytest.importorskip("torch")
    losses = [float(loss) for loss in re.findall(r"step +\d+ loss (\S+)", python("train.py", "--steps", "41"))]
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.2


def test_its_gradient_is_that_of_cross_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(FOLDER))
    entropy = importlib.import_module("kernels").CrossEntropy
    scores = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 5, (7,))
    (ours,) = torch.autograd.grad(entropy.apply(scores, labels), scores)
    (theirs,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, labels), scores)
    torch.testing.assert_close(ours, theirs)


def test_its_kernel_is_right(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "slow_softmax.py"
    file.write_text(TASK.format(folder=str(FOLDER)))
    task = load_task(str(file))
    verdict = check_on(task, Equipment(InterpreterEngine(task, default_board("sm_90"))), Scope(quick=True))
    assert verdict.verdict.startswith("correct"), verdict.reason


def test_its_readme_names_places_that_exist() -> None:
    named = re.findall(r"\| `(\w+\.py)`, ([^|]+) \|", (FOLDER / "README.md").read_text())
    assert len(named) == 6
    for file, places in named:
        for name in re.findall(r"`([\w.]+)`", places):
            assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", (FOLDER / file).read_text()), (file, name)
