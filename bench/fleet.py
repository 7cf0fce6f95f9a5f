"""How `tune` would scale: replays recorded compile and race times for 1 to 1,000 GPUs and 1 to 4,096 compile cores.

    python bench/fleet.py [--times 16] [--out OUT.json] [--svg docs/fleet.svg]
    python bench/fleet.py --of OUT.json [--svg docs/fleet.svg]       tables and picture of a recorded result
    python bench/fleet.py --check [--set-aside] [--out OUT.json]     compares with recorded runs
    python bench/fleet.py --fit                                      the numbers of fleet_recorded.py

A discrete-event simulation (simpy) with the rules of `tune`: the front end passes one configuration after the other,
and the compilers take them workload by workload, the slowest first. A GPU takes the first workload that no other GPU
has, and keeps it. It begins to verify when `ENOUGH_TO_START` of the candidates have compiled, one at a time while
compilers run, and races when `ENOUGH_TO_RACE` have. After the first race of a workload its slow compilers are ended.

Each fleet is simulated with failures, too: GPUs are lost or kept busy by other work, worker processes are killed, and
compile cores are lost, at random moments. A lost or busy GPU is left out (`tune.sharing`); another one begins its
workload again. A new worker process repeats the step of the killed one. A lost core leaves its configuration to
another core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fleet_recorded as recorded
import simpy
from common import made_here
from fleet_picture import knees, picture, rows_of
from fleet_recorded import FRONT_END, READ, START, Job, Unit

from tilewright.compile.screen import ENOUGH_TO_START, RACED
from tilewright.compile.skipped import compile_limit
from tilewright.tune.schedule import ENOUGH_TO_RACE

GPUS = (1, 4, 16, 64, 256, 1000)
CORES = (1, 16, 64, 256, 1024, 4096)
CLIENT_CORES = 16
"""Besides one client, fleets are simulated with a client, and so a front end, for each so many cores."""
Steps = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Failures:
    """Shares of the GPUs, worker processes and cores that fail once; at least one each, if there are several."""

    gpus_lost: float = 0.02
    gpus_busy: float = 0.05
    workers_killed: float = 0.05
    cores_lost: float = 0.02


@dataclass(frozen=True)
class Outcome:
    """The result of a simulated run.

    gpus, cores: the seconds of all GPUs and of all cores, by what they did.
    compile_seconds: the time at which the last compiler ended.
    finished: how often each workload was finished.
    """

    seconds: float
    compile_seconds: float
    gpus: Mapping[str, float]
    cores: Mapping[str, float]
    finished: Counter[int]
    failed: Counter[str]


@dataclass(eq=False)
class Work:
    """A workload in a simulated run."""

    number: int
    job: Job
    changed: simpy.Event
    limited: simpy.Event
    arrived: list[Unit] = field(default_factory=list)
    ended: int = 0
    """How many units were compiled, or given up because their compilers were slow."""
    skipped: int = 0
    limit: float = math.inf
    verified: set[Unit] = field(default_factory=set)
    raced: tuple[Unit, ...] = ()
    spent: Counter[str] = field(default_factory=Counter)

    @property
    def all(self) -> bool:
        return self.ended == len(self.job.units)

    @property
    def compiled(self) -> int:
        return sum(unit.configurations for unit in self.arrived)

    @property
    def enough_to_race(self) -> bool:
        expected = sum(unit.configurations for unit in self.job.units)
        return self.compiled >= ENOUGH_TO_RACE * (expected - self.skipped)

    def chosen(self) -> tuple[Unit, ...]:
        """Returns the best of the units that have compiled, and the shipped one."""
        ranked = sorted((unit for unit in self.arrived if unit.rank is not None), key=lambda unit: unit.rank or 0)
        return tuple(unit for place, unit in enumerate(ranked) if place < RACED or unit.shipped)


class Simulation:
    """One run of a fleet. ``clients``: how many front ends work side by side. ``host``: as in `Job.on`."""

    def __init__(self, jobs: Sequence[Job], gpus: int, cores: int, clients: int = 1, host: float = 1.0) -> None:
        self.host = host
        self.env = simpy.Environment()
        self.works = [Work(n, job, self.env.event(), self.env.event()) for n, job in enumerate(jobs)]
        self.waiting = deque(self.works)
        self.more, self.done = self.env.event(), self.env.event()
        self.ready = simpy.PriorityStore(self.env)
        self.spent: dict[str, Counter[str]] = {"gpus": Counter(), "cores": Counter()}
        self.finished, self.failed = Counter[int](), Counter[str]()
        self.count = {"gpus": gpus, "cores": cores}
        self.last_compiled = 0.0
        units = ((work, unit) for work in self.works for unit in work.job.units)
        ordered = iter(enumerate(units))
        for _ in range(clients):
            self.env.process(self._front_end(ordered))
        self.cores = [self.env.process(self._core()) for _ in range(cores)]
        self.gpus = [self.env.process(self._gpu()) for _ in range(gpus)]

    def run(self, failures: Failures | None = None, horizon: float = 0.0, seed: int = 0) -> Outcome:
        """Runs to the end of the last workload. ``horizon``: failures happen at random moments before it."""
        if failures is not None:
            self._plan(failures, horizon, random.Random(seed))
        self.env.run(until=self.done)
        now = self.env.now
        totals = {name: Counter(spent) for name, spent in self.spent.items()}
        for name, spent in totals.items():
            spent["idle"] = max(0.0, self.count[name] * now - sum(spent.values()))
        return Outcome(now, self.last_compiled, totals["gpus"], totals["cores"], self.finished, self.failed)

    # Compile ----------------------------------------------------------------------------------------------

    def _front_end(self, ordered: Iterator[tuple[int, tuple[Work, Unit]]]) -> Steps:
        for place, (work, unit) in ordered:
            yield self.env.timeout(self.host * FRONT_END * unit.configurations)
            yield self.ready.put(simpy.PriorityItem(place, (work, unit)))

    def _core(self) -> Steps:
        item: simpy.PriorityItem | None = None
        request: Any = None
        try:
            while True:
                item = None
                request = self.ready.get()
                item = yield request
                yield from self._compiled(*item.item)
        except simpy.Interrupt:
            if item is None and request.triggered:  # it was handed over at the very moment of the loss
                item = request.value
            if item is None:
                request.cancel()
            else:
                self.ready.put(item)

    def _compiled(self, work: Work, unit: Unit) -> Steps:
        """Compiles and reads a unit. Its compiler is ended when it is over the limit of its workload."""
        began = self.env.now
        try:
            while (left := min(unit.seconds, max(work.limit, self.env.now - began)) - (self.env.now - began)) > 1e-9:
                timeout = self.env.timeout(left)
                yield timeout if work.limited.triggered else timeout | work.limited
            if ended := unit.seconds > work.limit and self.env.now - began < unit.seconds - 1e-9:
                work.skipped += unit.configurations
            else:
                yield self.env.timeout(self.host * READ)
                work.arrived.append(unit)
        except simpy.Interrupt:
            self.spent["cores"]["repeated"] += self.env.now - began
            raise
        self.spent["cores"]["ended" if ended else "compile"] += self.env.now - began
        self.last_compiled = self.env.now
        work.ended += 1
        work.changed.succeed()
        work.changed = self.env.event()

    # Verify and race --------------------------------------------------------------------------------------

    def _gpu(self) -> Steps:
        work: Work | None = None
        ready = False
        while True:
            try:
                if not ready:
                    yield from self._during("start", self.host * START, work)
                    ready = True
                while work is not None or self.waiting:
                    work = work or self.waiting.popleft()
                    yield from self._tuned(work)
                    self._finish(work)
                    work = None
                yield self.more
            except simpy.Interrupt as failure:
                if failure.cause == "worker":
                    ready = False
                    continue
                if work is not None:
                    self._put_back(work)
                return

    def _tuned(self, work: Work) -> Steps:
        """Verifies and races one workload, as `tune.tune` does. A new worker process goes on where the last one was
        killed."""
        yield from self._until(work, lambda: work.compiled > int(ENOUGH_TO_START * work.job.asked) or work.all)
        while True:
            chosen = work.chosen()
            unverified = [unit for unit in chosen if unit not in work.verified]
            for unit in unverified if work.all else unverified[:1]:
                yield from self._during("verify", work.job.verify_seconds, work)
                work.verified.add(unit)
            if unverified and not work.all:
                continue
            if chosen and work.enough_to_race and chosen != work.raced:
                yield from self._during("race", work.job.race_seconds, work)
                work.raced = chosen
                self._limit(work)
            if work.all and work.chosen() == chosen:
                return
            ended = work.ended
            yield from self._until(work, lambda: work.all or work.ended > ended)  # noqa: B023  (called at once)

    def _limit(self, work: Work) -> None:
        limit = compile_limit([(unit.us, unit.seconds) for unit in work.raced], [unit.seconds for unit in work.arrived])
        work.limit = math.inf if limit is None else limit.seconds
        if not work.limited.triggered:
            work.limited.succeed()

    def _until(self, work: Work, met: Callable[[], bool]) -> Steps:
        began = self.env.now
        try:
            while not met():
                yield work.changed
        finally:
            self._charge("wait", self.env.now - began, work)

    def _during(self, stage: str, seconds: float, work: Work | None) -> Steps:
        began = self.env.now
        try:
            yield self.env.timeout(seconds)
        except simpy.Interrupt:
            self._charge("repeated", self.env.now - began, work)
            raise
        self._charge(stage, self.env.now - began, work)

    def _charge(self, stage: str, seconds: float, work: Work | None) -> None:
        (self.spent["gpus"] if work is None else work.spent)[stage] += seconds

    def _finish(self, work: Work) -> None:
        self.spent["gpus"].update(work.spent)
        self.finished[work.number] += 1
        if sum(self.finished.values()) == len(self.works):
            self.done.succeed()

    def _put_back(self, work: Work) -> None:
        """Leaves a workload to another GPU, which begins it again: what was verified or raced belongs to one GPU."""
        self.spent["gpus"]["repeated"] += sum(work.spent.values())
        work.spent, work.verified, work.raced = Counter(), set(), ()
        self.waiting.appendleft(work)
        self.more.succeed()
        self.more = self.env.event()

    # Failures ---------------------------------------------------------------------------------------------

    def _plan(self, failures: Failures, horizon: float, rng: random.Random) -> None:
        kinds: tuple[tuple[list[simpy.Process], float, str], ...] = (
            (self.gpus, failures.gpus_busy, "GPUs busy"), (self.gpus, failures.workers_killed, "worker"),
            (self.gpus, failures.gpus_lost, "GPUs lost"), (self.cores, failures.cores_lost, "cores lost"),
        )  # fmt: skip
        for processes, share, cause in kinds:
            for victim in rng.sample(processes, max(len(processes) > 1, int(share * len(processes)))):
                self.env.process(self._failure(victim, processes, cause, rng.uniform(0.0, horizon)))

    def _failure(self, victim: simpy.Process, processes: list[simpy.Process], cause: str, at: float) -> Steps:
        """Interrupts a process at a moment. The last GPU or core is never left out."""
        yield self.env.timeout(at)
        alive = sum(process.is_alive for process in processes)
        if victim.is_alive and (cause == "worker" or alive > 1):
            self.failed["workers killed" if cause == "worker" else cause] += 1
            victim.interrupt(cause)


def simulated(
    jobs: Sequence[Job], gpus: int, cores: int, clients: int = 1, failures: Failures | None = None, *,
    horizon: float | None = None, seed: int = 0, host: float = 1.0,
) -> Outcome:  # fmt: skip
    """Runs a fleet. ``horizon``: the time before which all failures happen; by default, as long as it takes without."""
    if failures is not None and horizon is None:
        horizon = Simulation(jobs, gpus, cores, clients, host).run().seconds
    return Simulation(jobs, gpus, cores, clients, host).run(failures, horizon or 0.0, seed)


# The command -----------------------------------------------------------------------------------------------


def jobs_to_tune(times: int) -> list[Job]:
    """Returns all recorded workloads ``times`` times, in an order that is drawn once."""
    jobs = [job for recording in recorded.SETS for job in recorded.jobs_of(recording)] * times
    random.Random(0).shuffle(jobs)
    return jobs


def compared(aside: bool) -> dict[str, Any]:
    """Simulates recorded runs, and returns simulated and recorded seconds of each stage, and the errors."""
    rows = []
    for run in recorded.runs(aside):
        found = simulated([run.job], gpus=1, cores=recorded.CORES, host=run.host)
        stages = {"compile": found.compile_seconds, "verify": found.gpus["verify"], "race": found.gpus["race"],
                  "total": found.seconds}  # fmt: skip
        rows.append({"file": run.file, "workload": run.job.name, "host": run.host, "simulated": stages,
                     "recorded": run.stages, "error": stages["total"] / run.stages["total"] - 1})  # fmt: skip
        shown = ", ".join(f"{name} {stages[name]:.2f} ({run.stages[name]:.2f})" for name in stages)
        print(f"{run.file[18:-5]:20} {run.job.name:20} host {run.host:.2f}, {shown}: {rows[-1]['error']:+.0%}")
    factor = math.exp(sum(abs(math.log1p(row["error"])) for row in rows) / len(rows))
    print(f"seconds simulated (recorded); error factor of the total {factor:.2f}")
    return {"rows": rows, "error_factor": factor}


def on_two_cores() -> dict[str, float]:
    """Simulates the recorded run of 24 compilers on two cores without a GPU, and returns the error."""
    seconds, wall = recorded.two_cores()
    units = tuple(Unit(each, 1.0, None, False, 1) for each in seconds)
    found = simulated([Job("matmul", units, len(units), 0.0, 0.0, 0, 0.0)], gpus=1, cores=2).compile_seconds
    error = found / wall["tilewright"] - 1
    print(f"24 compiled and read on two cores: {found:.2f} s ({wall['tilewright']:.2f} s recorded): {error:+.0%}")
    return {"simulated": found, "recorded": wall["tilewright"], "error": error}


def grid(jobs: Sequence[Job], many: bool, smooth: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Simulates fleets of all sizes. ``many``: whether there are several clients. ``smooth``: the results without
    failures; if given, things fail."""
    rows = []
    for place, (gpus, cores) in enumerate(itertools.product(GPUS, CORES)):
        clients = -(-cores // CLIENT_CORES) if many else 1
        horizon = smooth[place]["seconds"] if smooth else None
        found = simulated(jobs, gpus, cores, clients, Failures() if smooth else None, horizon=horizon)
        assert found.finished == dict.fromkeys(range(len(jobs)), 1), "each workload is finished exactly once"
        rows.append({"gpus": gpus, "cores": cores, "clients": clients, "seconds": found.seconds,
                     "gpu_seconds": dict(found.gpus), "core_seconds": dict(found.cores),
                     "failed": dict(found.failed)})  # fmt: skip
        print(f"{gpus:5} GPUs, {cores:5} cores, {clients:3} clients: {found.seconds:9.1f} s", flush=True)
    return rows


def show(result: Mapping[str, Any], svg: Path | None) -> None:
    print(rows_of(result), knees(result), sep="\n\n")
    if svg is not None:
        svg.write_text(picture(result) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=16, help="how often each recorded workload is tuned")
    parser.add_argument("--check", action="store_true", help="compare with recorded runs")
    parser.add_argument("--set-aside", action="store_true", help="compare with the runs that are set aside")
    parser.add_argument("--fit", action="store_true", help="print the fitted numbers")
    parser.add_argument("--of", type=Path, help="show a recorded result")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    if given.of:
        show(json.loads(given.of.read_text()), given.svg)
        return
    if given.fit:
        print(json.dumps(recorded.fitted(), indent=1))
        return
    if given.check or given.set_aside:
        result: dict[str, Any] = {"runs": compared(given.set_aside)}
        if not given.set_aside:
            result["two_cores"] = on_two_cores()
    else:
        jobs = jobs_to_tune(given.times)
        work = {"workloads": len(jobs), "core_seconds": sum(job.core_seconds for job in jobs),
                "gpu_seconds": sum(job.gpu_seconds for job in jobs)}  # fmt: skip
        print(work)
        result = {"jobs": work, "failures": asdict(Failures())}
        result["one client"] = grid(jobs, many=False)
        result["many clients"] = grid(jobs, many=True)
        result["with failures"] = grid(jobs, many=True, smooth=result["many clients"])
        show(result, given.svg)
    if given.out:
        given.out.write_text(json.dumps({**made_here(), **result}) + "\n")


if __name__ == "__main__":
    main()
