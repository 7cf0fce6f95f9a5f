"""The whole optimisation loop over one example on a machine without a GPU: wall seconds, and what was predicted.

    python bench/optimize_without_gpu.py [--task examples/rms_norm.py] [--arch sm_90] [--out FILE.json]

A process of its own, as a user starts it, on a copy of the file, with an empty home and an empty compiler cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from common import EXAMPLES, made_here, write


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default=str(EXAMPLES / "rms_norm.py"))
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tilewright-") as home:
        environment = os.environ | {"TILEWRIGHT_HOME": f"{home}/home", "CUDA_TILE_CACHE_DIR": f"{home}/cache"}
        task = shutil.copy(given.task, home)
        command = [sys.executable, "-m", "tilewright", "optimize", task, "--arch", given.arch, "--json"]
        started = time.perf_counter()
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - started
    result = json.loads(done.stdout)
    tried = len(result["iterations"]) - 1
    print(f"{seconds:.0f} s, {tried} iterations, {len(result['kept'])} kept; {result['stop_reason'][:160]}")
    write(given.out, {**made_here(), "cores": os.cpu_count(), "seconds": seconds, "result": result})


if __name__ == "__main__":
    main()
