"""Does the race pick the same winner in every process? 20 fresh processes on a short and a long kernel.

    python bench/same_winner.py [--out FILE.json] [--processes 20]

The candidates are compiled once. Each process verifies and races them anew, on inputs of its own.
Then every configuration that ever won is timed interleaved: the true regret of each winner.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Iterator

from common import EXAMPLES, build, made_here, need_gpu, paired_ratio, retime, write

from tilewright.compile.screen import RACED
from tilewright.executors.base import Executor
from tilewright.executors.local import Local
from tilewright.race.rules import Policy, cost_of
from tilewright.records import Checked, Workload
from tilewright.task.loading import load_task, where_is
from tilewright.task.task import Task
from tilewright.tune.tune import tune
from tilewright.worker.client import Contestant, Eliminated, RaceClient
from tilewright.worker.messages import Configured

CASES = (("rms_norm", "odd"), ("fmha", "causal"))
ROUNDS = 300


def one_race_each(
    task: Task, workload: Workload, contestants: list[Contestant], processes: int, start: Callable[[str], Executor]
) -> Iterator[tuple[str, int]]:
    """Yields the winner of a race in each fresh process, and its rounds. ``start``: starts a process for a task."""
    nearby = start(where_is(task))
    for number in range(processes):
        session, nearby = nearby, start(where_is(task))  # the next process imports torch meanwhile
        with session:
            client = RaceClient(session, Policy(seed=number), 1000 + number)
            correct = [each for each in contestants if _is_correct(client.verify(workload.name, each))]
            shipped = next((each for each in correct if each.name == str(task.space.shipped)), None)
            race = client.race(workload.name, correct, baseline=shipped)
        assert race.winner is not None, race.eliminated
        yield race.winner, race.record["rounds"]
    nearby.close(wait=False)


def repeated(name: str, workload_name: str, processes: int) -> dict:
    task = load_task(str(EXAMPLES / f"{name}.py"))
    workload = task.workload(workload_name)
    first = tune(task, workloads=[workload_name]).workloads[0]
    field = [c for c in first.candidates if c.status in ("raced",)]
    build(task, workload, [c.configuration for c in field])
    contestants = [Contestant(str(c.configuration), Configured(c.configuration), cost_of(c.code)) for c in field]
    races = list(one_race_each(task, workload, contestants, processes, Local))
    wins = [next(c.configuration for c in field if str(c.configuration) == winner) for winner, _ in races]
    rounds = [each for _, each in races]
    with Local(where_is(task)) as session:
        winners = list(
            dict.fromkeys([*wins, *(c.configuration for c in sorted(field, key=lambda c: c.measured.us)[:3])])
        )
        samples, _ = retime(session, workload, winners, ROUNDS)
    fastest = min(samples, key=statistics.median)
    regret = {str(config): paired_ratio(mine, fastest) - 1 for config, mine in zip(winners, samples, strict=True)}
    counts = Counter(str(config) for config in wins)
    worst = max(regret[one] for one in counts)
    us = statistics.median(fastest)
    print(f"{name} {workload_name} ({us:.1f} us): {dict(counts)} in {processes} processes; largest true regret of a "
          f"winner {worst:.2%}; rounds {statistics.median(rounds):g} (most {max(rounds)})", flush=True)  # fmt: skip
    return {"task": name, "workload": workload_name, "us": us, "wins": dict(counts), "regret": regret,
            "worst_regret": worst, "rounds": rounds, "raced": len(field), "top": RACED}  # fmt: skip


def _is_correct(verdict: Checked | Eliminated) -> bool:
    return isinstance(verdict, Checked) and verdict.verdict == "correct"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--processes", type=int, default=20)
    given = parser.parse_args()
    need_gpu()
    rows = [repeated(name, workload, given.processes) for name, workload in CASES]
    write(given.out, {**made_here(), "rows": rows})


if __name__ == "__main__":
    main()
