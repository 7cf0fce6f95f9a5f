"""How long the interpreter takes, watched, on one core: matmul 256³, rms_norm 512 × 1024, attention 1×2×256×64.

    taskset -c 0 env OMP_NUM_THREADS=1 python bench/interpret.py [--out FILE.json]

From a launch to its outputs: lowering, reading and running. The first launch of a process also pays for the
front end's own start, so each is run once before. Prints the best and the median of five.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from common import EXAMPLES, made_here, write

from tilewright.hardware.architectures import default_board
from tilewright.task.loading import load_task
from tilewright.verify.images import images_for, storage
from tilewright.verify.interpreted import InterpreterEngine
from tilewright.verify.tolerance import draw

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out")
    out = parser.parse_args().out
    found = {}
    for name, (dims, _, allowed) in CASES.items():
        times = seconds(name)
        best, median = round(min(times), 3), round(statistics.median(times), 3)
        found[name] = {"dims": dims, "best_s": best, "median_s": median, "allowed_s": allowed}
        print(f"{name:>10} {best:.3f} s, median {median:.3f} s, allowed {allowed:g} s")
    write(out, {**made_here(), "cases": found})


if __name__ == "__main__":
    main()
