"""How often is noise kept, and how often a gain of 3 %? Whole confirmations, each on fresh inputs.

    python bench/false_keeps.py [--out FILE.json] [--decisions 100]

The candidate is the incumbent's text in another file, or the same kernel with a shorter loop (`work_loop.py`).
The loop is cut to 3 % less time by two measurements, and what that truly gains is then measured by itself, in many
rounds. A third of the decisions is on a short kernel, a third on a long one, a third on both as two workloads (with the
loop of the long one, which gains a little less on the short one).
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import tempfile
import time
from pathlib import Path

from common import made_here, need_gpu, write

from tilewright.candidate.client import Candidates
from tilewright.hardware.gpu import detect
from tilewright.optimize.attempting import Builder
from tilewright.optimize.gates.arena import Arena, Confirmation, Confirmations, Entrant, PlannedLook, confirm
from tilewright.race.protocol import Budget
from tilewright.race.rules import Policy
from tilewright.race.stats import median_interval, spread
from tilewright.task.loading import load_task, where_is

FILE = Path(__file__).parent / "work_loop.py"
TRIPS = 2000
GAIN = 0.03
FIELDS = (("short",), ("long",), ("short", "long"))
TRUTH = PlannedLook(150, Budget(3000, 6.0, 300))
PROBE = PlannedLook(40, Budget(400, 1.5, 100))
PROBES, CLOSE = 6, 0.001
"""Attempts at a loop that takes 3 % less time, and how near is near enough."""


class Versions:
    """Texts of the kernel with other loops, in files of their own."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.text, self.made = builder, FILE.read_text(), 0

    def new(self, trips: int = TRIPS) -> Entrant:
        self.made += 1
        text = self.text.replace(f"TRIPS = {TRIPS}\n", f"TRIPS = {trips}\n")
        return self.builder.build_one(f"{self.made}-{trips}", {FILE.resolve(): text}).entrant


def measured(arena: Arena, workload: str, candidate: Entrant, incumbent: Entrant, look: PlannedLook) -> Confirmation:
    found = arena.confirm(workload, candidate, incumbent, incumbent, secrets.randbits(31), look)
    if not isinstance(found, Confirmation):
        raise SystemExit(f"{found.name}: {found.reason}")
    return found


def shortened(arena: Arena, versions: Versions, incumbent: Entrant, workload: str) -> tuple[int, Entrant]:
    """The loop that takes 3 % less time. Time is nearly linear in its length; unrolling makes it uneven."""
    trips, best = TRIPS // 2, (1.0, TRIPS, incumbent)
    for _ in range(PROBES):
        candidate = versions.new(trips)
        ratio = statistics.median(measured(arena, workload, candidate, incumbent, PROBE).ratios)
        best = min(best, (abs(1 - GAIN - ratio), trips, candidate), key=lambda one: one[0])
        if best[0] < CLOSE:
            break
        trips = round(TRIPS - (TRIPS - trips) * GAIN / (1 - ratio))
    return best[1], best[2]


def decisions(arena: Arena, incumbent: Entrant, candidates: dict[str, Entrant], n: int, what: str) -> list[dict]:
    rows = []
    for number in range(n):
        field = FIELDS[number % len(FIELDS)]
        started = time.perf_counter()
        found = confirm(arena, field, candidates[field[-1]], incumbent, incumbent, secrets.randbits(31))
        if not isinstance(found, Confirmations):
            raise SystemExit(f"{found.name}: {found.reason}")
        rows.append({
            "workloads": field, "keep": found.decision.keep, "decided": found.decision.decided,
            "reason": found.decision.reason,
            "overall": found.decision.overall.to_json(),
            "floors": {name: one.floor for name, one in found.decision.by_workload.items()},
            "rounds": {name: len(one.candidate_us) for name, one in found.by_workload.items()},
            "captures": {name: len(one.captures) for name, one in found.by_workload.items()},
            "ratios": {name: one.ratios.tolist() for name, one in found.by_workload.items()},
            "copies": {name: one.copies.tolist() for name, one in found.by_workload.items()},
            "seconds": time.perf_counter() - started,
        })  # fmt: skip
        if (number + 1) % 20 == 0:
            print(f"  {what}: {number + 1} of {n} decisions, {sum(row['keep'] for row in rows)} kept", flush=True)
    return rows


def table(name: str, rows: list[dict]) -> None:
    for field in FIELDS:
        mine = [row for row in rows if tuple(row["workloads"]) == field]
        if not mine:
            continue
        rounds = statistics.median(max(row["rounds"].values()) for row in mine)
        seconds = statistics.median(row["seconds"] for row in mine)
        print(f"{name:10} {'+'.join(field):12} kept {sum(row['keep'] for row in mine):3} of {len(mine):3}, not decided "
              f"{sum(not row['decided'] for row in mine):3}  "
              f"rounds {rounds:5g}  {seconds:.2f} s a decision")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--decisions", type=int, default=100)
    given = parser.parse_args()
    need_gpu()
    task = load_task(str(FILE))
    gpu = detect()
    assert gpu is not None
    with tempfile.TemporaryDirectory(prefix="false-keeps-") as folder, Candidates([FILE]) as candidates:
        versions = Versions(Builder(candidates, task, where_is(task), gpu.board, task.selected(None), Path(folder)))
        incumbent = versions.new()
        with Arena(task, where_is(task), incumbent, Policy(), secrets.randbits(31)) as arena:
            same = {workload: versions.new() for workload in task.workloads}
            faster, truth = {}, {}
            for workload in task.workloads:
                trips, faster[workload] = shortened(arena, versions, incumbent, workload)
                paired = measured(arena, workload, faster[workload], incumbent, TRUTH)
                ratio, noise, apart = median_interval(paired.ratios), paired.noise, spread(paired.copies)
                us = statistics.median(paired.incumbent_us)
                truth[workload] = {
                    "trips": trips, "of": TRIPS, "us": us, "ratio": ratio.to_json(), "aa": noise.to_json(),
                    "captures_spread": apart,
                }  # fmt: skip
                print(f"{workload}: {us:.2f} us; {trips} of {TRIPS} trips take {ratio} of the time; two copies "
                      f"{noise}, and spread {apart:.2%} over {noise.n} captures", flush=True)  # fmt: skip
            identical = decisions(arena, incumbent, same, given.decisions, "identical")
            gaining = decisions(arena, incumbent, faster, given.decisions, "3 % faster")
    table("identical", identical)
    table("3 % faster", gaining)
    write(given.out, {**made_here(), "truth": truth, "identical": identical, "gaining": gaining,
                      "false_keeps": sum(row["keep"] for row in identical),
                      "not_decided": sum(not row["decided"] for row in (*identical, *gaining)),
                      "true_keeps": sum(row["keep"] for row in gaining)})  # fmt: skip


if __name__ == "__main__":
    main()
