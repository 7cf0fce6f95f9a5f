"""Optimises TileGym's operations, one process a task, on all GPUs that are visible.

    python bench/tilegym/run.py [--only NAME …] [--out DIR] [-- OPTIONS of tilewright optimize]

Writes ``h200-tilegym-<date>.json`` into DIR (by default ``bench/recorded``): the JSON of each run, its speedup over
what TileGym ships and over PyTorch; and each patch as ``tilegym-<date>/<task>.patch``. Run `shipped.py` before.
Run `confirm.py` (patched against unpatched) and `tune_patched.py` (a configuration for each workload) on the patches.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from as_launched import RECORD
from common import made_here
from operations import EAGER, HERE, OPERATIONS, workloads_of

from tilewright.race.stats import geometric_mean

RECORDED = HERE.parent / "recorded"
HOURS = 1.0
"""Wall time of one task's loop."""


def visible_gpus() -> list[str]:
    """Indices as CUDA_VISIBLE_DEVICES takes them; one empty name where there is no GPU: the loop then predicts."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    return [str(index) for index in range(torch.cuda.device_count())] or [""]


def optimized(where: str, operation: str, gpu: str, options: Sequence[str]) -> dict[str, Any]:
    """The object that ``tilewright optimize --json`` prints, and the patch; or what went wrong."""
    command = [sys.executable, "-m", "tilewright", "optimize", where, "--json", *options]
    if operation in EAGER:
        command += ["--launch", "eager"]
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600 * HOURS)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {HOURS:g} h", "command": command}
    if done.returncode != 0:
        return {"failed": done.stderr[-4000:], "returncode": done.returncode, "command": command}
    result: dict[str, Any] = json.loads(done.stdout)
    patch = Path(result["folder"]) / "changes.patch"
    return {**result, "command": command, "patch": patch.read_text() if patch.exists() else ""}


def rows(operation: str, result: dict[str, Any], shipped: dict[str, Any]) -> list[dict[str, Any]]:
    """One a workload: before, after, and how much faster than TileGym and than PyTorch."""
    found = []
    for workload, before in result.get("baseline", {}).items():
        after = result["final"][workload]
        measured = before["us"] and after["us"]
        before_us, after_us = (one["us"] if measured else one["predicted_us"] for one in (before, after))
        paired = (after.get("against_baseline") or {}).get("centre") or after_us / before_us
        torch_us = shipped.get(operation, {}).get(workload, {}).get("torch_us")
        found.append({
            "operation": operation, "workload": workload, "measured": bool(measured),
            "before_us": before_us, "after_us": after_us, "speedup": 1 / paired,
            "torch_us": torch_us, "over_torch": torch_us / after_us if torch_us and measured else None,
        })  # fmt: skip
    return found


def summary(all_rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over operations of each one's mean over its workloads, so that no operation counts twice."""
    by_operation: dict[str, float] = {}
    for name in dict.fromkeys(row["operation"] for row in all_rows):
        mean = geometric_mean([row["speedup"] for row in all_rows if row["operation"] == name])
        assert mean is not None
        by_operation[name] = mean
    over_torch = [row["over_torch"] for row in all_rows if row["over_torch"]]
    return {
        "speedup_by_operation": by_operation,
        "speedup": geometric_mean(list(by_operation.values())),
        "slowest": min((row["speedup"] for row in all_rows), default=None),
        "over_torch": geometric_mean(over_torch),
    }


def run_all(names: Sequence[str], options: Sequence[str], folder: Path, record: dict[str, Any], out: Path) -> None:
    """A thread a GPU takes task after task; the record is written after each."""
    shipped = json.loads(RECORD.read_text())["operations"] if RECORD.exists() else {}
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for name in names:
        for where in workloads_of(name):
            waiting.put((name, where))
    lock = threading.Lock()

    def work(gpu: str) -> None:
        while True:
            try:
                operation, where = waiting.get_nowait()
            except queue.Empty:
                return
            result = optimized(where, operation, gpu, options)
            task = where.rpartition(":")[2]
            with lock:
                if patch := result.pop("patch", ""):
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{task}.patch").write_text(patch)
                record["runs"][task] = {"operation": operation, **result}
                record["rows"] += rows(operation, result, shipped)
                record["summary"] = summary(record["rows"])
                out.write_text(json.dumps(record, indent=1) + "\n")
                said = result.get("failed") or f"{result['speedup']:.3f}×, kept {len(result['kept'])}"
                print(f"{task} on GPU {gpu or '-'}: {said}", flush=True)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in visible_gpus()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=OPERATIONS, metavar="NAME")
    parser.add_argument("--out", type=Path, default=RECORDED, metavar="DIR")
    parser.add_argument("options", nargs="*", help="for tilewright optimize, after --")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {**made_here(), "runs": {}, "rows": [], "summary": {}}
    board = (record["machine"]["gpu"] or "predicted").split()[-1].lower()
    out = given.out / f"{board}-tilegym-{date.today()}.json"
    run_all(given.only or OPERATIONS, given.options, given.out / f"tilegym-{date.today()}", record, out)
    print(json.dumps(record["summary"], indent=1))


if __name__ == "__main__":
    main()
