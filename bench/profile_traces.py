"""Records traces on a GPU through `tilewright profile`: an eager training step, a graph replay, and DDP on two GPUs.

Each trace goes to OUT/NAME.json.gz, with the JSON of its profile beside it. `profile_against_hta.py` compares them
with HTA. The programs are unchanged ones: none imports Tilewright.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import made_here, need_gpu

MODEL = """
import os, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024)) for _ in range(12)))
"""

EAGER = (
    MODEL
    + """
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(40):
    data = torch.randn(256, 1024).cuda()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
"""
)

GRAPH = (
    MODEL
    + """
model, data = model.cuda().half(), torch.randn(256, 1024, device="cuda").half()
with torch.no_grad():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(data)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(data)
for _ in range(50):
    graph.replay()
torch.cuda.synchronize()
"""
)

DDP = (
    MODEL
    + """
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(40):
    model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
)


def recorded(name: str, program: str, launcher: list[str], out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, traces = Path(folder) / f"{name}.py", Path(folder) / "traces"
        file.write_text(program)
        command = [
            sys.executable,
            "-m",
            "tilewright",
            "profile",
            "--json",
            "--out",
            str(traces),
            "--steps",
            "20:25",
            "--",
        ]
        done = subprocess.run([*command, *launcher, str(file)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        for trace in sorted(traces.glob("*.json.gz")):
            which = f"-{trace.name.partition('.')[0]}" if launcher[0] == "torchrun" else ""
            shutil.copy(trace, out / f"{name}{which}.json.gz")
        found = json.loads(done.stdout)
        (out / f"{name}.json").write_text(json.dumps({**made_here(), "profile": found}, indent=1))
        for gpu in found["gpus"]:
            parts = ("compute", "exposed communication", "exposed copy", "idle", "host late")
            shares = ", ".join(f"{part} {gpu['figures'][part]['value']:.1%}" for part in parts)
            print(f"{name}, GPU {gpu['device']}: {shares}; {len(found['findings'])} findings")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    need_gpu()
    import torch

    given.out.mkdir(parents=True, exist_ok=True)
    recorded("eager", EAGER, [sys.executable], given.out)
    recorded("graph", GRAPH, [sys.executable], given.out)
    if torch.cuda.device_count() > 1:
        recorded("ddp", DDP, ["torchrun", "--nproc-per-node", "2"], given.out)
    else:
        print("ddp: left out, it needs two GPUs")


if __name__ == "__main__":
    main()
