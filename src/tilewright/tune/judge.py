"""Defines the judges, which verify and race candidates. With a GPU, the judge is the worker process. Without a GPU, the
judge is the Tile IR interpreter."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from tilewright.compile.compile import Compiled
from tilewright.executors.base import Executor
from tilewright.executors.local import Local
from tilewright.hardware import gpu
from tilewright.inspect.speed_limit import SpeedLimit
from tilewright.progress import Progress, timed
from tilewright.race.rules import Policy
from tilewright.records import Checked, Configuration
from tilewright.task.loading import where_is
from tilewright.task.task import Task
from tilewright.tune.run import TuneRequest
from tilewright.tune.workload_search import TimeLimit
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
def judges_of(
    request: TuneRequest, executors: Sequence[Executor | None], limit: TimeLimit, progress: Progress,
    note: Callable[[str], None],
) -> Iterator[Sequence[Judge]]:  # fmt: skip
    """Yields the judges for a request, which share its workloads.

    executors: run the steps, one for each judge; None: a worker process for each free GPU of this machine. These
        processes end with the ``with`` block.
    note: called with the GPUs that are left out, each with the reason.
    """
    task, seed = request.task, request.seed
    with ExitStack() as stack:
        if not request.target.measured:
            early.end()
            from tilewright.verify.check import InterpreterChecker  # imported late: not needed where a GPU verifies

            seed = secrets.randbits(31) if seed is None else seed
            checker = stack.enter_context(closing(InterpreterChecker(task, request.target.board, seed)))
            yield [Interpreted(checker, seed, limit, progress)]
            return
        opened: list[Executor] = []
        for given in executors:
            opened += [given] if given else map(stack.enter_context, _workers(note))
        shortest = SpeedLimit(task, request.target.board, request.policy)
        for each in opened:
            each.open(where_is(task))
            seed = each.seed() if seed is None else seed
        assert seed is not None
        yield [MeasuringJudge(task, each, request.policy, seed, progress, shortest) for each in opened]


def _workers(note: Callable[[str], None]) -> list[Executor]:
    """Starts a worker process for each GPU of this machine that takes part."""
    if gpu.count() < 2:
        return [Local(process=early.early_worker())]
    every = gpu.visible()
    chosen, left_out = taking_part(every, lambda index: gpu.Monitor(index).busy())
    for remark in left_out:
        note(remark)
    if chosen[0] != 0:
        early.end()
    return [Local(device=index) if index else Local(process=early.early_worker()) for index in chosen]


def taking_part(gpus: Sequence[gpu.Gpu], busy: Callable[[int], str | None]) -> tuple[list[int], list[str]]:
    """Returns the indices of the GPUs that measure, and a remark for each other GPU.

    All have the model of the first GPU, because another model is another target. Busy GPUs are left out, unless all are
    busy. Then the first one measures.
    """
    chosen, remarks = [], []
    for index, each in enumerate(gpus):
        if each.name != gpus[0].name:
            why: str | None = f"it is another model than GPU 0, {gpus[0].name}; fix: tune for it alone"
        else:
            why = busy(index)
        if why is None:
            chosen.append(index)
        else:
            remarks.append(f"GPU {index} ({each.name}) is left out: {why}")
    return (chosen, remarks) if chosen else ([0], [*remarks, "all GPUs are busy, so GPU 0 measures nevertheless"])
