"""How long the interpreter takes, watched, on one core: matmul 256³, rms_norm 512 × 1024, attention 1×2×256×64.

    taskset -c 0 env OMP_NUM_THREADS=1 python bench/interpret.py

From a launch to its outputs: lowering, reading and running. The first launch of a process also pays for the
front end's own start, so each is run once before. Prints the best and the median of five as JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from tilewright.hardware import default_board
from tilewright.loading import load_task
from tilewright.verification.images import images_for, storage
from tilewright.verification.interpreted import InterpreterEngine
from tilewright.verify import draw

EXAMPLES = Path(__file__).parent.parent / "examples"
CASES = {
    "matmul": ({"M": 256, "N": 256, "K": 256}, {"TILE_M": 64, "TILE_N": 64, "TILE_K": 32}, 2.0),
    "rms_norm": ({"M": 512, "N": 1024}, {}, 1.0),
    "fmha": ({"B": 1, "H": 2, "S": 256, "D": 64, "causal": True}, {"TILE_M": 64, "TILE_N": 64}, 3.0),
}
"""Dimensions, knobs, and the seconds that are allowed."""
RUNS = 5


def seconds(name: str) -> list[float]:
    dims, knobs, _ = CASES[name]
    task = load_task(str(EXAMPLES / f"{name}.py"))
    configuration = task.space.shipped.replace(**knobs)
    rng, times = np.random.default_rng(0), []
    arrays = task.arrays(dims)
    inputs = {
        one: draw(spec.distribution, arrays[one].shape, rng).astype(storage(spec.dtype))
        for one, spec in task.inputs.items()
    }
    for _ in range(RUNS + 1):
        images = images_for(task, dims, inputs, "row-major", 0xFF)
        started = time.perf_counter()
        ran = InterpreterEngine(task, default_board("sm_90")).run(configuration, dims, images)
        times.append(time.perf_counter() - started)
        assert ran.failed is None and ran.refused is None and not ran.findings, ran
        for output in task.outputs:
            assert np.isfinite(images[output].array.astype(np.float32)).all()
    return times[1:]


def main() -> None:
    found = {}
    for name, (dims, _, allowed) in CASES.items():
        times = seconds(name)
        found[name] = {
            "dims": dims, "best_s": round(min(times), 3), "median_s": round(statistics.median(times), 3),
            "allowed_s": allowed,
        }  # fmt: skip
    json.dump({"host": platform.processor() or platform.machine(), "python": platform.python_version(),
               "numpy": np.__version__, "cases": found}, sys.stdout, indent=1)  # fmt: skip
    print()


if __name__ == "__main__":
    main()
