"""What TileGym ships on this GPU: for each operation and workload what its own search takes, its time, and PyTorch's.

    python bench/tilegym/shipped.py [--only NAME …] [--out FILE.json]

The public operations are called as a user calls them (`public`). The tasks read the result, `shipped.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

from as_launched import RECORD
from common import made_here, need_gpu
from operations import OPERATIONS, workloads_of
from public import Session

ROUNDS = 60
TURNS = 3


def shipped(name: str) -> dict[str, Any]:
    """By workload, without what an earlier record says: all workloads of the file, whatever its tasks are."""
    found = {}
    for where, workloads in workloads_of(name).items():
        with Session(where) as session:
            for workload in workloads:
                one = session.ask(do="prepare", workload=workload)
                turns = [session.ask(do="measure", rounds=ROUNDS // TURNS) for _ in range(TURNS)]
                us = [sample for turn in turns for sample in turn["us"]]
                torch_us = [sample for turn in turns for sample in turn["torch_us"]]
                found[workload] = {
                    **one, "us": statistics.median(us), "torch_us": statistics.median(torch_us),
                    "samples_us": us, "torch_samples_us": torch_us,
                }  # fmt: skip
                print(
                    f"{name} {workload}: {found[workload]['us']:.1f} us, torch {found[workload]['torch_us']:.1f}"
                    f" us, first call {one['first_call_s']:.1f} s, took {one.get('pick', 'what it always takes')}",
                    flush=True,
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=OPERATIONS, metavar="NAME")
    parser.add_argument("--out", type=Path, default=RECORD)
    given = parser.parse_args()
    need_gpu()
    record = {**made_here(), "operations": {}}
    if given.only and given.out.exists():
        record["operations"] = json.loads(given.out.read_text())["operations"]
    for name in given.only or OPERATIONS:
        record["operations"][name] = shipped(name)
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
