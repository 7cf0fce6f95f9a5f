"""`tilewright profile` on programs that really run on the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

TRAINS = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(30):
    model(torch.randn(64, 512).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

REPLAYS = """
import torch
a = torch.randn(256, 256, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    (a @ a).relu()
side.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(5):
        b = (a @ a).relu()
for _ in range(7):
    graph.replay()
torch.cuda.synchronize()
"""


def profiled(code: str, folder: Path, *options: str) -> Any:
    (folder / "program.py").write_text(code)
    command = [sys.executable, "-m", "tilewright", "profile", "--json", *options, "--", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_eager_training_program(tmp_path: Path) -> None:
    found = profiled(TRAINS, tmp_path)
    (gpu,) = found["gpus"]
    parts = ("compute", "exposed communication", "exposed copy", "idle")
    assert sum(gpu["figures"][part]["value"] for part in parts) == pytest.approx(1, abs=1e-6)
    assert gpu["figures"]["unknown"]["value"] < 0.02, "calls and activities are joined"
    assert found["traces"][0]["steps"] == 5 and len(found["steps_us"]) > 5
    assert any("gemm" in row["name"].lower() or "nvjet" in row["name"].lower() for row in gpu["kernels"])
    assert gpu["figures"]["pageable copy count"]["value"] >= 4


def test_a_graph_replay(tmp_path: Path) -> None:
    found = profiled(REPLAYS, tmp_path)
    (gpu,) = found["gpus"]
    assert gpu["figures"]["graph launches"]["value"] == 7
    assert gpu["figures"]["activities of graphs"]["value"] >= 7 * 10


def test_counters_name_their_rung(tmp_path: Path) -> None:
    found = profiled(
        "import torch\na = torch.randn(2048, 2048, device='cuda')\nfor _ in range(30): a @ a\n", tmp_path, "--counters"
    )
    if found["rung"]["name"] == "Nsight Compute":
        values = {row["name"].rpartition(": ")[2]: row["value"] for row in found["traces"][0]["counters"]}
        assert 0.3 < values["speed of light"] <= 1.1 and values["time"] > 0
    else:
        assert found["why_not_higher"]
