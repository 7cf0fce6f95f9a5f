"""The time of `tilewright tune` on all GPUs of a machine, and with all but one of them hidden.

    python bench/two_gpus.py --out bench/recorded/two_gpus.json

Needs a machine with two or more GPUs of one model. A task of 8 workloads is tuned by fresh processes with empty caches,
first one GPU and all GPUs in turn, `--times` each. With two GPUs, verifying and racing should take at most 0.55 of the
time with one, and the whole command at most 0.7. The share of compiling is stated, because it does not get shorter. The
winner of each workload must be among those that tie in the other run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import EXAMPLES, made_here, need_gpu, write

from tilewright.hardware import gpu

TASK = """\
import sys
from dataclasses import replace

sys.path.insert(0, {examples!r})
import matmul

sizes = (512, 1024, 1536, 2048, 3072, 4096, 5120, 6144)
task = replace(matmul.task, workloads={{str(size): {{"M": size, "N": size, "K": 2048}} for size in sizes}})
"""
MEASURING, WHOLE = 0.55, 0.7
"""The largest ratios for two GPUs."""


def tuned(visible: str) -> dict[str, Any]:
    """Returns what `tune --json` says with these GPUs visible, and the wall time of the command."""
    with tempfile.TemporaryDirectory(prefix="two-gpus-") as home:
        file = Path(home) / "eight.py"
        file.write_text(TASK.format(examples=str(EXAMPLES)))
        environment = os.environ | {
            "TILEWRIGHT_HOME": f"{home}/home", "CUDA_TILE_CACHE_DIR": f"{home}/cache", "CUDA_VISIBLE_DEVICES": visible,
        }  # fmt: skip
        command = [sys.executable, "-m", "tilewright", "tune", str(file), "--json", "--seed", "5"]
        started = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"tune failed with CUDA_VISIBLE_DEVICES={visible}: {done.stderr}")
    said = json.loads(done.stdout)
    winners = {row["workload"]: [row["best"]["config"], *row["tied"]] for row in said["workloads"]}
    return {"gpus": visible, "command": seconds, **said["seconds"], "winners": winners, "notes": done.stderr}


def compared(one: list[dict[str, Any]], both: list[dict[str, Any]]) -> dict[str, Any]:
    """Compares runs on one GPU with runs on several. Ratios are those of the medians."""

    def median(runs: list[dict[str, Any]], *stages: str) -> float:
        return statistics.median(sum(run[stage] for stage in stages) for run in runs)

    first = one[0]["winners"]
    other = [
        workload for run in (*one[1:], *both) for workload, (best, *tied) in run["winners"].items()
        if best not in first[workload] and first[workload][0] not in tied
    ]  # fmt: skip
    return {
        "verify_and_race": median(both, "verify", "race") / median(one, "verify", "race"),
        "whole_command": median(both, "command") / median(one, "command"),
        "compiling_share_of_one": median(one, "compile") / median(one, "command"),
        "compiling_share_of_all": median(both, "compile") / median(both, "command"), "other_winners": other,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    need_gpu()
    if (count := gpu.count()) < 2:
        sys.exit(f"this benchmark needs two GPUs, and {count} is visible")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    one: list[dict[str, Any]] = []
    both: list[dict[str, Any]] = []
    for _ in range(given.times):
        one.append(tuned(visible.split(",")[0]))
        both.append(tuned(visible))
        found = compared(one, both)
        write(given.out, {**made_here(), "gpus": count, **found, "one": one, "all": both})
    print(
        f"verify and race {found['verify_and_race']:.2f} of one GPU (at most {MEASURING}), the command "
        f"{found['whole_command']:.2f} (at most {WHOLE}); compiling is {found['compiling_share_of_one']:.0%} of the "
        f"command on one GPU and {found['compiling_share_of_all']:.0%} on {count}; "
        f"other winners: {', '.join(found['other_winners']) or 'none'}"
    )


if __name__ == "__main__":
    main()
