"""Patched against unpatched, as a user of TileGym sees it: the public operations of two copies of the package.

    python bench/tilegym/confirm.py PATCHES [--only NAME …] [--out FILE.json]

PATCHES is a folder with ``<task>.patch`` files, as `run.py` leaves it. Each patch is applied to a copy of the
installed package. Patched and unpatched run in a process each, searches included, and take turns; their results are
compared with each other and with PyTorch's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import numpy as np
from common import made_here, need_gpu, paired_ratio, write
from operations import OPERATIONS, workloads_of
from public import Session
from run import summary

ROUNDS, TURNS = 10, 20
"""Samples in a turn, and turns of each process."""
WORSE = 2.0
"""The patched result may be so much further from PyTorch's than the unpatched one (trust.md 4)."""


def installed() -> Path:
    """The folder that holds the installed package."""
    spec = importlib.util.find_spec("tilegym")
    assert spec is not None and spec.origin is not None, "tilegym is not installed"
    return Path(spec.origin).parent.parent


def patched_copy(patch: Path, folder: Path) -> Path:
    """A copy of the installed package with the patch, in ``folder``."""
    shutil.copytree(installed() / "tilegym", folder / "tilegym", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["patch", "-p1", "--no-backup-if-mismatch", "-i", str(patch.absolute())], cwd=folder, check=True)
    return folder


def confirmed(where: str, workloads: tuple[str, ...], patch: Path, operation: str) -> list[dict[str, Any]]:
    """One row a workload."""
    found = []
    with tempfile.TemporaryDirectory(prefix="tilegym-") as name:
        folder = patched_copy(patch, Path(name))
        for workload in workloads:
            with Session(where) as before, Session(where, tilegym=folder) as after:
                found.append(_row(before, after, workload, operation, folder))
    return found


def _row(before: Session, after: Session, workload: str, operation: str, folder: Path) -> dict[str, Any]:
    prepared = [one.ask(do="prepare", workload=workload) for one in (before, after)]
    assert Path(prepared[1]["tilegym"]).is_relative_to(folder), "the patched copy was not the one that ran"
    results = [one.ask(do="result", file=str(folder / f"{place}.npy")) for place, one in enumerate((before, after))]
    ours = [np.load(folder / f"{place}.npy") for place in range(2)]
    medians: list[list[float]] = [[], []]
    torch_us = []
    for _ in range(TURNS):
        for place, one in enumerate((before, after)):
            turn = one.ask(do="measure", rounds=ROUNDS)
            medians[place].append(statistics.median(turn["us"]))
            torch_us.append(statistics.median(turn["torch_us"]))
    worse = max(
        after_error / max(before_error, 1e-12)
        for before_error, after_error in zip(results[0]["error"], results[1]["error"], strict=True)
    )
    row = {
        "operation": operation, "workload": workload,
        "before_us": statistics.median(medians[0]), "after_us": statistics.median(medians[1]),
        "speedup": paired_ratio(medians[0], medians[1]),
        "torch_us": statistics.median(torch_us),
        "over_torch": statistics.median(torch_us) / statistics.median(medians[1]),
        "before": prepared[0], "after": prepared[1], "turns_us": medians,
        "error_before": results[0]["error"], "error_after": results[1]["error"],
        "largest_difference": float(np.abs(ours[0] - ours[1]).max()),
        "same_bits": bool(np.array_equal(ours[0], ours[1])),
        "correct": worse <= WORSE,
    }  # fmt: skip
    print(
        f"{operation} {workload}: {row['before_us']:.1f} -> {row['after_us']:.1f} us, {row['speedup']:.3f}x, "
        f"torch {row['torch_us']:.1f} us, {'correct' if row['correct'] else 'WRONG'}, "
        f"takes {prepared[1].get('pick', 'what it always takes')}",
        flush=True,
    )
    return row


def arguments(description: str | None) -> argparse.Namespace:
    """PATCHES, --only and --out, as the scripts take them that run on patches."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patches", type=Path)
    parser.add_argument("--only", nargs="*", choices=OPERATIONS, metavar="NAME")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def patched_tasks(folder: Path, names: Sequence[str] | None) -> Iterator[tuple[str, str, tuple[str, ...], Path]]:
    """Operation, task, workloads and patch of each task with a patch in ``folder``. ``names``: operations, or all."""
    for operation in names or OPERATIONS:
        for where, workloads in workloads_of(operation).items():
            patch = folder / f"{where.rpartition(':')[2]}.patch"
            if patch.exists():
                yield operation, where, workloads, patch


def main() -> None:
    given = arguments(__doc__)
    need_gpu()
    record: dict[str, Any] = {**made_here(), "tilegym": str(installed()), "rows": []}
    write(given.out, record)
    for operation, where, workloads, patch in patched_tasks(given.patches, given.only):
        record["rows"] += confirmed(where, workloads, patch, operation)
        record["summary"] = summary(record["rows"])
        write(given.out, record)
    print(json.dumps(record.get("summary"), indent=1))


if __name__ == "__main__":
    main()
