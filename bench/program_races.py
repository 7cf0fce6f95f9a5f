"""How often does a race of a program against itself call noise a win, and does it find a program that does less?

    python bench/program_races.py [--out FILE.json] [--races 20] [--rounds 12] [--torch 2]

Two small programs run on the CPU: one with NumPy, whose sample is its whole run, and a training program with torch,
whose sample is the mean of its steps. Each races against an equal copy, and against one that does a fifth less. No GPU
is needed. Run it on a busy machine, too: the answer must not depend on it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import date
from pathlib import Path

from common import write

from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.race import ProgramRace, race_programs

PROGRAMS = {
    "numpy": """
import numpy as np
values = np.random.rand(1 << 16)
for n in range(WORK):
    values = np.sort(np.sin(values))
print(values.sum())
""",
    "torch": """
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(WORK // 10)))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
x = torch.randn(64, 256)
for step in range(40):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
""",
}
WORK, LESS = 100, 80


def race(program: str, after: int, rounds: int, seed: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        script = Path(folder) / "program.py"
        script.write_text(PROGRAMS[program].replace("WORK", str(WORK)))
        command = ProgramCommand.of([sys.executable, "program.py"], script.parent)
        texts = {"before": {}, "after": {script: PROGRAMS[program].replace("WORK", str(after))}}
        copies = {name: [stack.enter_context(program_copy(command, each))] for name, each in texts.items()}
        began = time.perf_counter()
        done = race_programs(copies, rounds=rounds, steps=40, seed=seed, seconds=3600.0)
    if not isinstance(done, ProgramRace):
        raise SystemExit(done.reason)
    print(f"{program}, work {after}: {done.decided}: {done.reason}; {done.machine}", flush=True)
    return {
        "program": program, "work": after, "decided": done.decided, "rounds": done.rounds,
        "ratio": done.ratio.to_json(),
        "samples_us": {name: list(us) for name, us in done.samples.items()}, "machine": done.machine,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--races", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--torch", type=int, default=2, help="races of the program with torch")
    given = parser.parse_args()
    rows = []
    for program, races in (("numpy", given.races), ("torch", given.torch)):
        for seed in range(races):
            rows.append(race(program, WORK, given.rounds, seed))
            if seed * 4 < races:
                rows.append(race(program, LESS, given.rounds, seed))
    for work in (WORK, LESS):
        print(f"work {work}:", dict(Counter(str(row["decided"]) for row in rows if row["work"] == work)))
    if given.out:
        write(given.out, {"date": str(date.today()), "processors": os.cpu_count(), "work": [WORK, LESS], "races": rows})


if __name__ == "__main__":
    main()
