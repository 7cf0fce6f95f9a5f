"""Is the limit named that was planted? The diagnosis of each kernel in bench/planted/, against what its file says.

    python bench/planted_limits.py [--set-aside] [--out FILE.json] [KERNEL …]

The kernels of bench/planted/set_aside.txt are left out, unless --set-aside asks for them alone. Nothing is measured:
the times are those that the model predicts for an H200.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from pathlib import Path
from typing import Any

from common import lines_of, made_here, write

from tilewright.compile.compile import Unit, compile_all, launch_of
from tilewright.hardware.architectures import board
from tilewright.inspect.work import bound_of, count, diagnosis_of
from tilewright.records import Failed
from tilewright.task.loading import load_task

FOLDER = Path(__file__).parent / "planted"
H200 = board("H200")


def set_aside() -> list[str]:
    return lines_of(FOLDER / "set_aside.txt")


def row_of(name: str) -> dict[str, Any]:
    """The planted and the named limit of one kernel, on its first workload."""
    file = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"planted_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    task = load_task(str(file))
    workload = task.selected(None)[0]
    unit = Unit(workload, task.space.shipped, H200)
    [compiled] = compile_all(task, [unit])
    assert not isinstance(compiled.code, Failed), compiled.code
    counted, bound = count(task, workload, H200), bound_of(task, workload, H200)
    grid = launch_of(task, unit)[0].grid
    found = diagnosis_of(task, workload, (compiled.code, grid), bound, H200, counted)
    limits = [found.limit, *found.others]
    return {
        "kernel": name, "planted": module.PLANTED, "named": found.limit.resource, "share": found.share,
        "bound": bound.kind, "ctas": math.prod(grid), "limits": [vars(limit) for limit in limits],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--out")
    given = parser.parse_args()
    aside = set_aside()
    names = [path.stem for path in sorted(FOLDER.glob("*.py")) if (path.stem in aside) == given.set_aside]
    rows = [row_of(name) for name in given.kernels or names]
    for row in rows:
        print(f"{row['kernel']:18} planted {row['planted']!r}, named {row['named']!r}, {row['share']:.0%}")
        for limit in row["limits"]:
            print(f"{'':20}{limit['lost_us']:8.1f} µs  {limit['resource']}: {limit['evidence']}")
    right = sum(row["planted"] == row["named"] for row in rows)
    print(f"{right} of {len(rows)} named right{' (set aside)' if given.set_aside else ''}; predicted for an H200")
    write(given.out, {**made_here(), "set_aside": given.set_aside, "right": right, "rows": rows})


if __name__ == "__main__":
    main()
