"""Does the diagnosis name what helped? The limit of each plain kernel at its recorded time, beside the changes kept.

    python bench/limits_of_recorded.py [--out FILE.json]

The times and the kept changes are those of bench/recorded/h200-naive-2026-11-21.json; the machine code is compiled
here. A limit helped if one of the kept changes is of an entry that eases it.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from common import BENCH, EXAMPLES, made_here, write

from tilewright.inspect.work import diagnosis_of
from tilewright.playbook import catalogue
from tilewright.playbook.base import present_name
from tilewright.task.loading import load_task
from tilewright.testing.entries import H200, facts_of

RUNS = BENCH / "recorded" / "h200-naive-2026-11-21.json"


def rows_of(run: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each workload of a recorded run."""
    eases = {entry.about.id: entry.about.eases for entry in catalogue()}
    facts = facts_of(load_task(str(EXAMPLES / "naive" / f"{run['kernel']}.py")))
    kept = [present_name(each["entry"]) for each in run["iterations"] if each["status"] == "keep" and each["entry"]]
    rows = []
    for workload in facts.workloads:
        us = run["workloads"][workload.name]["baseline"]["us"]
        launched, bound = (facts.codes[workload.name], facts.launch(workload).grid), facts.bounds[workload.name]
        found = diagnosis_of(facts.task, workload, launched, bound, H200, facts.count(workload), us)
        helped = [entry for entry in kept if found.limit.resource in eases.get(entry, ())]
        rows.append(
            {"kernel": run["kernel"], "workload": workload.name, "us": us, "share": found.share,
             "limit": found.limit.resource, "evidence": found.limit.evidence, "kept": kept, "helped": helped}
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out")
    given = parser.parse_args()
    rows = [row for run in json.loads(RUNS.read_text())["rows"] for row in rows_of(run)]
    for row in rows:
        helped = f"kept: {', '.join(row['helped'])}" if row["helped"] else "no kept change eases it"
        print(
            f"{row['kernel']:12} {row['workload']:14} {row['us']:7.0f} µs {row['share']:4.0%} {row['limit']}; {helped}"
        )
    right = sum(bool(row["helped"]) for row in rows)
    print(f"in {right} of {len(rows)} workloads a kept change eases the named limit")
    write(given.out, {**made_here(), "right": right, "rows": rows})


if __name__ == "__main__":
    main()
