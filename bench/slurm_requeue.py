"""Runs `tilewright optimize` in allocations of a real SLURM on loopback, takes them from it, and reads what it resumed.

    python bench/slurm_requeue.py --out FILE.json

SLURM has JobRequeue=1, PreemptMode=REQUEUE and a GraceTime, so preemption first sends its signal, SIGTERM. Three runs
lose their allocation after their first iteration: by `scontrol requeue`, by a job with a higher priority, and by that
signal alone. Needs root and SLURM. No GPU takes part: the iterations are decided by predictions.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from common import made_here, write

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the cluster of the tests

from tests.optimize.kit import SCALE, repository  # noqa: E402
from tests.remote.kit import wait_for  # noqa: E402
from tests.slurm import kit  # noqa: E402

GRACE_SECONDS = 4
ITERATIONS = "SELECT n, at FROM iterations ORDER BY n"
WORDS = ["optimize", "ops.py", "--arch", "sm_90", "--seed", "1", "--iterations", "3", "--on", "slurm", "--json"]


def requeued(cluster: kit.Cluster, job: str) -> None:
    cluster.requeue(job)


def preempted(cluster: kit.Cluster, job: str) -> None:
    wrap = ["--wrap=sleep 600", "-N2", "--exclusive", "--output=/dev/null"]
    urgent = cluster.say("sbatch", "--parsable", "-p", "urgent", *wrap).strip()
    wait_for(lambda: cluster.say("squeue", "-h", "-j", urgent, "-o", "%T").strip() == "RUNNING")
    cluster.say("scancel", urgent)


def signalled(cluster: kit.Cluster, job: str) -> None:
    cluster.say("scancel", "--signal=TERM", job)


def rows_of(ledger: Path, query: str) -> list[list[Any]]:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as found:
        return [list(row) for row in found.execute(query)]
    return []


def tried(cluster: kit.Cluster, folder: Path, take: Callable[[kit.Cluster, str], None]) -> dict[str, Any]:
    """Makes one run, and takes its allocation after its first iteration."""
    file, before = repository(folder / "user", SCALE.replace("(256,)", "(256, 1024)")), cluster.submitted()
    env = os.environ | {
        "TILEWRIGHT_JOB_SPEC": str(kit.spec(folder, remote_work_dir=str(folder / "there"))),
        "TILEWRIGHT_HOME": str(folder / "home"),
    }
    began = time.monotonic()
    client = subprocess.Popen(
        [sys.executable, "-m", "tilewright", *WORDS], cwd=file.parent, env=env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip

    def there() -> list[list[Any]]:
        return [row for ledger in folder.glob("there/work/*/home/ledger.db") for row in rows_of(ledger, ITERATIONS)]

    wait_for(lambda: len(there()) > 1 or client.poll() is not None)
    finished, [job] = there(), [each.split()[0] for each in cluster.jobs()]
    take(cluster, job)
    _, said = client.communicate(timeout=300)
    wait_for(lambda: not cluster.left(), 60)
    shown, ledger = cluster.say("scontrol", "-o", "show", "job", job), folder / "home" / "ledger.db"
    iterations = rows_of(ledger, ITERATIONS)
    return {
        "exit code": client.returncode, "iterations before": len(finished), "iterations": len(iterations),
        "of these unchanged": sum(row in iterations for row in finished),
        "events": [event for (event,) in rows_of(ledger, "SELECT event FROM run_events ORDER BY number")],
        "jobs": cluster.submitted() - before, "restarts": shown.partition("Restarts=")[2].split(" ")[0],
        "first job": shown.partition("JobState=")[2].split(" ")[0],
        "said": [line for line in said.splitlines() if "job" in line or "died" in line],
        "seconds": round(time.monotonic() - began, 1), "left": cluster.left(),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    for old, new in (
        ("PreemptMode=CANCEL", "PreemptMode=REQUEUE\nJobRequeue=1"),
        ("Default=YES", f"Default=YES GraceTime={GRACE_SECONDS}"),
    ):
        kit.CONFIGURATION = kit.CONFIGURATION.replace(old, new)
    found = {}
    with tempfile.TemporaryDirectory(prefix="tilewright-slurm-") as scratch:
        (folder := Path(scratch)).chmod(0o755)
        (folder / "slurm").mkdir()
        cluster = kit.Cluster(folder / "slurm")
        try:
            cluster.start()
            os.environ |= cluster.environ | {"XDG_CACHE_HOME": str(folder / "here")}
            for take in (requeued, preempted, signalled):
                found[take.__name__] = tried(cluster, folder / take.__name__, take)
                print(take.__name__, json.dumps(found[take.__name__]), flush=True)
        finally:
            cluster.stop()
    version = subprocess.run([str(kit.DAEMONS["slurmctld"]), "-V"], capture_output=True, text=True).stdout.strip()
    write(asked.out, {**made_here(), "slurm": version, "words": WORDS, "runs": found})
    kept = all(each["of these unchanged"] == each["iterations before"] > 0 for each in found.values())
    return 0 if kept and not any(each["exit code"] or each["left"] for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
