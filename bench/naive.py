"""`tilewright optimize` with its default settings on the eight plain kernels of examples/naive/.

    python bench/naive.py [--out FILE.json] [--keep DIR] [KERNEL …]

One process a GPU; a kernel waits until one is free. Each runs on a copy of its file, with a home and a compiler
cache of its own, so that no run learns from another. Below --keep stand the report, the page and the patch
of each. With --arch and without a GPU everything is predicted, and says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from common import EXAMPLES, made_here, need_gpu, write

NAMES = ("rms_norm", "matmul", "matmul_fp32", "softmax", "attention", "rope", "layer_norm", "dual_gemm")
SECONDS = 3600.0
"""For one kernel."""


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [str(number) for number in range(len([line for line in listed.splitlines() if line.startswith("GPU")]))]


def optimized(name: str, folder: Path, gpu: str | None, options: Sequence[str]) -> dict[str, Any]:
    """One run in a process of its own: its row of the record."""
    folder.mkdir(parents=True)
    file = shutil.copy(EXAMPLES / "naive" / f"{name}.py", folder)
    environment = os.environ | {"TILEWRIGHT_HOME": str(folder / "home"), "CUDA_TILE_CACHE_DIR": str(folder / "cache")}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    command = [sys.executable, "-m", "tilewright", "optimize", file, "--json", "--fresh", *options]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"kernel": name, "failed": f"no end after {SECONDS:g} s"}
    seconds = time.perf_counter() - started
    (folder / "said.txt").write_text(done.stderr)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["without a word"]
        return {"kernel": name, "failed": f"exit code {done.returncode}: {said[-1]}"}
    result = json.loads(done.stdout)
    (folder / "result.json").write_text(done.stdout)
    patch = written_reports(result["run"], folder, environment)
    return {"kernel": name, "seconds": seconds, **row_of(result), "patch": patch}


def written_reports(run: str, folder: Path, environment: dict[str, str]) -> str:
    """Markdown, page and patch beside the copy; the patch."""
    command = [sys.executable, "-m", "tilewright", "report", run]
    for option, name in (("--markdown", "report.md"), ("--html", "report.html"), ("--patch", "changes.patch")):
        command += [option, str(folder / name)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return (folder / "changes.patch").read_text()


def row_of(result: dict[str, Any]) -> dict[str, Any]:
    """What the record keeps of the JSON of `tilewright optimize`."""
    tried = result["iterations"][1:]
    kept = [one for one in tried if one["status"] == "keep"]
    return {
        "run": result["run"],
        "measured": result["measured"],
        "speedup": result["speedup"],
        "workloads": {
            workload: {"baseline": before, "final": result["final"][workload]}
            for workload, before in result["baseline"].items()
        },
        "kept": [
            {key: one[key] for key in ("n", "optimization", "value", "risk", "correctness", "reason")} for one in kept
        ],
        "verified": all(one["correctness"] == "PASS" for one in kept),
        "lossy": any(one["risk"] == "lossy" for one in kept),
        "tried": len(tried),
        "stop_reason": result["stop_reason"],
        "iterations": result["iterations"],
    }


def told(row: dict[str, Any]) -> str:
    """The row as lines of a table."""
    if "failed" in row:
        return f"{row['kernel']:12} failed: {row['failed']}"
    times = ", ".join(
        f"{name} {_us(one['baseline'])} → {_us(one['final'])} µs" for name, one in row["workloads"].items()
    )
    marks = ("" if row["verified"] else ", NOT VERIFIED") + (", lossy" if row["lossy"] else "")
    kept = "; ".join(f"{one['optimization']}, {one['value']}" for one in row["kept"]) or "nothing"
    return (
        f"{row['kernel']:12} {row['speedup'] or 1.0:6.2f}×  {times}; {row['seconds']:.0f} s, "
        f"{len(row['kept'])} of {row['tried']} kept{marks}\n{'':21}{kept}"
    )


def _us(standing: dict[str, Any]) -> str:
    return f"{standing['us'] or standing['predicted_us']:,.1f}"


def geometric_mean(rows: Sequence[dict[str, Any]]) -> float:
    """Of the speedups; a kernel that nothing was kept for counts as 1."""
    return math.exp(math.fsum(math.log(row.get("speedup") or 1.0) for row in rows) / len(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=", ".join(NAMES))
    parser.add_argument("--out")
    parser.add_argument("--keep", type=Path, help="a new folder for reports and patches")
    parser.add_argument("--arch", help="predict for this architecture, without a GPU")
    parser.add_argument("--iterations", type=int, help="as of `tilewright optimize`")
    parser.add_argument("--stop-after", type=float, metavar="MINUTES", help="as of `tilewright optimize`")
    parser.add_argument("--allow-lossy", action="store_true")
    given = parser.parse_args()
    if unknown := [name for name in given.kernels if name not in NAMES]:
        parser.error(f"unknown kernel '{unknown[0]}'; known: {', '.join(NAMES)}")
    if not given.arch:
        need_gpu()
    gpus: list[str | None] = [None] if given.arch else list(visible_gpus())
    options = ["--jobs", str(max(1, (os.cpu_count() or 1) // len(gpus)))]
    limits = (("--arch", given.arch), ("--iterations", given.iterations), ("--stop-after", given.stop_after))
    for option, value in limits:
        options += [option, str(value)] if value is not None else []
    options += ["--allow-lossy"] if given.allow_lossy else []
    free: SimpleQueue[str | None] = SimpleQueue()
    for gpu in gpus:
        free.put(gpu)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="naive-"))

    def one(name: str) -> dict[str, Any]:
        gpu = free.get()
        try:
            row = optimized(name, folder.absolute() / name, gpu, options)
        finally:
            free.put(gpu)
        print(told(row), flush=True)
        return row

    started = time.perf_counter()
    with ThreadPoolExecutor(len(gpus)) as pool:
        rows = list(pool.map(one, given.kernels or NAMES))
    mean = geometric_mean(rows)
    measured = "predicted, not measured" if given.arch else f"{len(gpus)} GPUs"
    print(f"geometric mean {mean:.2f}× over {len(rows)} kernels ({measured}), {time.perf_counter() - started:.0f} s")
    print(f"reports and patches: {folder}")
    write(given.out, {**made_here(), "gpus": len(gpus), "options": options, "geometric_mean": mean, "rows": rows})
    if any("failed" in row or not row["verified"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
