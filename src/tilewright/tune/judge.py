"""Defines the judges, which verify and race candidates. With a GPU, the judge is the worker process. Without a GPU, the
judge is the Tile IR interpreter."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from tilewright.compile.compile import Compiled
from tilewright.executors.base import Executor
from tilewright.executors.local import Local
from tilewright.inspect.speed_limit import SpeedLimit
from tilewright.progress import Progress, timed
from tilewright.race.rules import Policy
from tilewright.records import Checked, Configuration
from tilewright.task.loading import where_is
from tilewright.task.task import Task
from tilewright.tune.run import TuneRequest
from tilewright.tune.searching import TimeLimit
from tilewright.worker import early
from tilewright.worker.client import Contestant, RaceClient
from tilewright.worker.messages import Configured, Source
from tilewright.worker.programs import source_of

if TYPE_CHECKING:
    from tilewright.verify.check import InterpreterChecker


TOO_LATE = Checked("unverified", "not compared, because the time limit passed")


class Interpreted:
    """The judge without a GPU. It verifies with the interpreter and does not race."""

    steps = 0

    def __init__(self, checker: InterpreterChecker, seed: int, limit: TimeLimit, progress: Progress) -> None:
        self.checker, self.seed, self.limit, self.progress = checker, seed, limit, progress
        self._found: set[str] = set()
        """The workloads that have a correct candidate."""
        self.seconds = {"verify": 0.0, "race": 0.0}

    def source(self, compiled: Compiled) -> Source:
        return Configured(compiled.unit.configuration)

    def prepare(self, workload: str) -> None:
        """Does nothing, because each check draws its own inputs."""

    def is_verified(self, workload: str, contestant: Contestant) -> bool:
        return False

    def verify(self, workload: str, contestant: Contestant) -> Checked:
        """Compares the outputs of a candidate. After the time limit, only until one candidate is correct."""
        assert isinstance(contestant.source, Configured)
        if self.limit.passed and workload in self._found:
            return TOO_LATE
        with timed(self.seconds, "verify"):
            checked = self.checker.of(self.checker.task.workload(workload), contestant.source.configuration)
        if checked.right:
            self._found.add(workload)
        return checked

    def race(self, workload: str, contestants: Sequence[Contestant], *, baseline: Contestant | None = None) -> None:
        """Does nothing, because nothing is timed without a GPU."""


class MeasuringJudge(RaceClient):
    """The judge with a GPU: the worker process. ``limit``: the shortest possible time; shorter measured times are
    refused."""

    def __init__(
        self, task: Task, executor: Executor, policy: Policy, seed: int, progress: Progress, limit: SpeedLimit
    ):
        super().__init__(executor, policy, seed, progress, too_fast=limit.refusal)
        self.task = task
        self._sources: dict[tuple[str, Configuration], Source] = {}

    def source(self, compiled: Compiled) -> Source:
        """Returns the object by which the worker launches a candidate. The object is made once and kept."""
        key = compiled.unit.workload.name, compiled.unit.configuration
        if key not in self._sources:
            self._sources[key] = source_of(self.task, compiled, self.policy)
        return self._sources[key]


Judge: TypeAlias = MeasuringJudge | Interpreted


@contextmanager
def judge_of(request: TuneRequest, executor: Executor | None, limit: TimeLimit, progress: Progress) -> Iterator[Judge]:
    """Yields the judge for a request.

    executor: runs the steps. None starts a worker process on this machine, which ends with the ``with`` block.
    """
    task, seed = request.task, request.seed
    if request.target.measured:
        with Local(process=early.early_worker()) if executor is None else nullcontext(executor) as opened:
            opened.open(where_is(task))
            seed = opened.seed() if seed is None else seed
            shortest = SpeedLimit(task, request.target.board, request.policy)
            yield MeasuringJudge(task, opened, request.policy, seed, progress, shortest)
        return
    early.end()
    from tilewright.verify.check import InterpreterChecker  # imported late: not needed where a GPU verifies

    seed = secrets.randbits(31) if seed is None else seed
    with closing(InterpreterChecker(task, request.target.board, seed)) as checker:
        yield Interpreted(checker, seed, limit, progress)
