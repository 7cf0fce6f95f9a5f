"""The split of `tilewright profile` against that of HolisticTraceAnalysis, on recorded or on made traces.

HTA lives in an environment of its own (it asks for jupyterlab, which it does not need here):

    python -m venv /tmp/hta && /tmp/hta/bin/pip install --no-deps HolisticTraceAnalysis
    /tmp/hta/bin/pip install "pandas<3" networkx plotly pydantic pyyaml psutil pydot tqdm
    python bench/profile_against_hta.py --hta /tmp/hta/bin/python [TRACE…] --out OUT.json

Without traces, five made traces of each sort are compared: eager training, graph replay, data-parallel. HTA's rounding
of times to whole microseconds is switched off, and then on. HTA leaves out what the host launched outside of the
profiler's steps. Its table of exposed communication cuts each piece to whole microseconds in both cases.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.profile.made_traces import data_parallel, eager_training, graph_replay

from tilewright.profile.profile import profile

ASK_HTA = """
import json, logging, sys, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
from importlib.metadata import version
from hta.trace_analysis import TraceAnalysis
found = {"version": version("HolisticTraceAnalysis")}
for path in sys.argv[1:]:
    asked = TraceAnalysis(trace_files={0: path}, trace_dir="/", include_last_profiler_step=True)
    (parts,) = asked.get_temporal_breakdown(visualize=False).to_dict("records")
    kinds, _ = asked.get_gpu_kernel_breakdown(visualize=False, num_kernels=5)
    idle, _ = asked.get_idle_time_breakdown(visualize=False)
    found[path] = {"parts": parts, "kinds": kinds.to_dict("records"), "idle": idle.to_dict("records")}
print(json.dumps(found, default=str))
"""


def ours(path: Path) -> dict[str, float]:
    (gpu,) = profile(path).gpus
    values = {name: gpu.value(name) or 0.0 for name in (*NAMES[:2], "exposed copy", "idle")}
    values[NAMES[2]] = values["exposed communication"] + values.pop("exposed copy")
    return {name: round(100 * values[name], 3) for name in NAMES}


NAMES = ("compute", "exposed communication", "exposed communication and copies", "idle")


def theirs(found: dict[str, Any]) -> dict[str, float]:
    """The same parts, in percent of the time of the kernels."""
    whole = found["parts"]["kernel_time(us)"]
    exposed = sum(row["sum"] for row in found["kinds"] if row["kernel_type"] == "COMMUNICATION")
    compute, other, idle = (found["parts"][f"{part}_time(us)"] for part in ("compute", "non_compute", "idle"))
    values = (compute, exposed, other, idle)
    return {name: round(100 * value / whole, 3) for name, value in zip(NAMES, values, strict=True)}


def compared(hta: str, paths: list[Path], rounding: bool) -> dict[str, Any]:
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "0" if rounding else "1"}
    command = [hta, "-c", ASK_HTA, *map(str, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"HTA failed: {done.stderr.splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    rows, worst = [], dict.fromkeys(NAMES, 0.0)
    for path in paths:
        mine, other = ours(path), theirs(found[str(path)])
        apart = {name: round(abs(mine[name] - other[name]), 3) for name in NAMES}
        worst = {name: max(worst[name], apart[name]) for name in NAMES}
        rows.append({"trace": path.name, "ours %": mine, "HTA %": other, "apart, points": apart})
    return {"HTA": found["version"], "HTA rounds to µs": rounding, "worst, points": worst, "traces": rows}


def made(folder: Path) -> list[Path]:
    sorts = (eager_training, graph_replay, data_parallel)
    return [
        sort(seed=seed, steps=8).write(folder / f"{sort.__name__}-{seed}.json.gz")
        for sort in sorts
        for seed in range(5)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--hta", required=True, help="the Python of the environment with HTA")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [path.resolve() for path in given.traces] or made(Path(folder))
        results = [compared(given.hta, paths, rounding) for rounding in (False, True)]
    for result in results:
        print(f"HTA rounds to µs: {result['HTA rounds to µs']}; points apart at most {result['worst, points']}")
    if given.out:
        head = {
            "command": "python " + " ".join(sys.argv),
            "date": str(date.today()),
            "python": platform.python_version(),
        }
        given.out.write_text(json.dumps({**head, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
