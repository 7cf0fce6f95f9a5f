"""Steps on a Ray cluster of this machine while its workers are killed: is any result lost or wrong?

    python bench/ray_faults.py [--steps 100] [--faults 10] [--seed 0] [--set-aside] [--out FILE.json]

The cluster is real: a head, and three nodes with one GPU each, which is made up. Two executors share the steps. Each
step is a race on a simulated clock, with true times that no other step has, after the step that prepares its inputs. At
drawn steps a fault is injected, each kind in turn:

    in a step               the actor is killed (SIGKILL) while the race runs
    between steps           the actor is killed between the preparation and the race
    twice in a step         the actor that replaces the killed one is killed in the same step
    set aside: see bench/ray_faults_set_aside.txt

Every result must be the one of the same steps without Ray and without faults, in a worker process of this machine. At
the end no process of an actor or a worker may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import BENCH, lines_of, made_here, write
from tests.ray_cluster.kit import RayCluster
from tests.ray_cluster.tuning import SimulatedRay
from tests.remote.kit import children, processes, wait_for
from tests.remote.tuning import WORKER
from tests.tune.test_tune import OPS

from tilewright.executors.local import Local
from tilewright.race.rules import Policy
from tilewright.worker.messages import FieldRaced, PrepareInputs, Program, RaceField

SEEN = ("in a step", "between steps", "twice in a step")
PREPARED, WORKLOADS = "PrepareInputs", ("even", "odd")
WAIT = 180.0


def race(number: int) -> RaceField:
    """The race of a step: three candidates whose true times are those of no other step."""
    sources = tuple(Program("", "kernel", (100 * number + 10 * place + 1,), ()) for place in range(3))
    return RaceField(sources, ((), (), ()), 0, Policy(max_rounds=40, seed=number))


def shown(answer: FieldRaced) -> Any:
    """What must be equal: all but the wall time."""
    return {name: value for name, value in answer.race.to_json().items() if name != "seconds"}


class Executing:
    """One executor, and the faults of its steps. ``folder``: where its worker process notes its steps."""

    def __init__(self, cluster: RayCluster, run: SimulatedRay, folder: Path) -> None:
        self.cluster, self.run, self.folder, self.hold = cluster, run, folder, folder / "hold"

    def step(self, number: int, fault: str | None) -> Any:
        assert self.run.run(PrepareInputs(WORKLOADS[number % 2], number)).status == "PASSED"
        if fault == "between steps":
            os.kill(self.actor(), signal.SIGKILL)
        if fault is None or fault == "between steps":
            return self.answer(number)
        self.hold.touch()
        before = self.steps("RaceField"), self.steps(PREPARED)
        injected = threading.Thread(target=self.inject, args=(fault, *before))
        injected.start()
        answer = self.answer(number)
        injected.join()
        return answer

    def answer(self, number: int) -> Any:
        outcome = self.run.run(race(number))
        return outcome.reason if outcome.answer is None else shown(outcome.answer)

    def inject(self, fault: str, races: int, prepared: int) -> None:
        """Kills what ``fault`` says once the race runs, and then lets the race end."""
        for again in range(1, 3 if fault == "twice in a step" else 2):
            wait_for(lambda again=again: self.steps("RaceField") == races + again, WAIT)  # type: ignore[misc]
            if fault.startswith("the node"):
                self.cluster.end_node_of(self.actor())
                self.cluster.add_node()
            else:
                os.kill(self.actor(), signal.SIGKILL)
        if fault.endswith("prepared again"):
            wait_for(lambda: self.steps(PREPARED) > prepared, WAIT)
            os.kill(self.actor(), signal.SIGKILL)
        self.hold.unlink()

    def steps(self, name: str) -> int:
        file = self.folder / "steps"
        return file.read_text().split("\n").count(name) if file.exists() else 0

    def actor(self) -> int:
        """The process of the actor: the one whose worker process has this folder."""
        found: list[int] = []

        def there() -> bool:
            ours = [pid for pid in self.cluster.workers() if any(str(self.folder) in line for _, line in children(pid))]
            found[:] = ours
            return bool(ours)

        wait_for(there, WAIT)
        return found[0]


def expected(task: str, folder: Path, steps: int) -> list[Any]:
    """Returns the results without Ray and without faults."""
    with Local(command=(sys.executable, WORKER, str(folder))) as run:
        run.open(task)
        found = []
        for number in range(steps):
            assert run.run(PrepareInputs(WORKLOADS[number % 2], number)).status == "PASSED"
            outcome = run.run(race(number))
            assert outcome.answer is not None, outcome
            found.append(shown(outcome.answer))
    return found


def with_faults(cluster: RayCluster, task: str, folder: Path, steps: int, faults: dict[int, str]) -> dict[str, Any]:
    """Runs the steps on two executors, and returns the results and what was said."""
    said: list[str] = []
    results: dict[int, Any] = {}
    numbers: Queue[int] = Queue()
    for number in range(steps):
        numbers.put(number)

    def work(executing: Executing) -> None:
        while True:
            try:
                number = numbers.get_nowait()
            except Empty:
                return
            results[number] = executing.step(number, faults.get(number))

    runs = []
    with SimulatedRay(cluster.address, (sys.executable, WORKER, str(folder / "first"))) as first:
        first.say = said.append
        first.place(task)
        with SimulatedRay(cluster.address, (sys.executable, WORKER, str(folder / "second")), first.cluster) as second:
            second.say = said.append
            for name, run in (("first", first), ("second", second)):
                (folder / name).mkdir()
                run.open(task)
                runs.append(threading.Thread(target=work, args=(Executing(cluster, run, folder / name),)))
            for thread in runs:
                thread.start()
            for thread in runs:
                thread.join()
    return {"results": results, "said": said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--out")
    given = parser.parse_args()
    kinds = lines_of(BENCH / "ray_faults_set_aside.txt") if given.set_aside else SEEN
    drawn = sorted(random.Random(given.seed).sample(range(given.steps), given.faults))
    faults = {number: kinds[place % len(kinds)] for place, number in enumerate(drawn)}
    cluster = RayCluster(0)
    with tempfile.TemporaryDirectory(prefix="ray-faults-") as scratch:
        folder = Path(scratch)
        (folder / "task").mkdir()
        (folder / "task" / "ops.py").write_text(OPS)
        task = str(folder / "task" / "ops.py")
        right = expected(task, folder, given.steps)
        os.environ |= cluster.environ
        try:
            cluster.start()
            for _ in range(3):
                cluster.add_node()
            started = time.monotonic()
            found = with_faults(cluster, task, folder, given.steps, faults)
            seconds = time.monotonic() - started
            with suppress(AssertionError):
                wait_for(lambda: not cluster.workers() and not left(folder), WAIT)
            processes_left = len(cluster.workers()) + len(left(folder))
        finally:
            cluster.stop()
    results = found["results"]
    lost = sorted(set(range(given.steps)) - results.keys())
    wrong = sorted(number for number, result in results.items() if result != right[number])
    print(
        f"{given.steps} steps, {given.faults} faults in {seconds:.0f} s: results lost {len(lost)}, wrong {len(wrong)}"
    )
    print(f"processes left: {processes_left}")
    write(given.out, {
        **made_here(), "ray": version("ray"), "steps": given.steps, "faults": dict(Counter(faults.values())),
        "set_aside": given.set_aside, "seed": given.seed, "lost": lost, "wrong": wrong,
        "processes_left": processes_left, "replaced": len(found["said"]), "seconds": seconds, "said": found["said"],
    })  # fmt: skip
    sys.exit(bool(lost or wrong or processes_left))


def left(folder: Path) -> list[str]:
    """Returns the commands of worker processes that still run."""
    return [line for _, line in processes() if str(folder) in line and "ray_faults" not in line]


if __name__ == "__main__":
    main()
