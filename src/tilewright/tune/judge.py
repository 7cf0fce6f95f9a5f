"""Who verifies and races a workload's candidates: the worker process, or without a GPU the interpreter."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeAlias

from tilewright.executors import executor_of
from tilewright.executors.base import Executor
from tilewright.hardware.machine import Target
from tilewright.progress import Progress
from tilewright.race.rules import Policy
from tilewright.records import Checked
from tilewright.task.loading import where_is
from tilewright.task.task import Task
from tilewright.worker.client import Contestant, RaceClient
from tilewright.worker.messages import Configured

if TYPE_CHECKING:
    from tilewright.verify.quick import QuickChecker


class Interpreted:
    """The judge where there is no GPU: the interpreter's verdicts, and no race."""

    steps = 0

    def __init__(self, checker: QuickChecker, seed: int, progress: Progress) -> None:
        self.checker, self.seed, self.progress = checker, seed, progress
        self.seconds = {"verify": 0.0, "race": 0.0}

    def prepare(self, workload: str) -> None:
        """Nothing to prepare: each check draws its own inputs."""

    def is_verified(self, workload: str, contestant: Contestant) -> bool:
        return False

    def verify(self, workload: str, contestant: Contestant) -> Checked:
        assert isinstance(contestant.source, Configured)
        started = time.perf_counter()
        checked = self.checker.of(self.checker.task.workload(workload), contestant.source.configuration)
        self.seconds["verify"] += time.perf_counter() - started
        return checked

    def race(self, workload: str, contestants: Sequence[Contestant], *, baseline: Contestant | None = None) -> None:
        """Nothing is timed."""


Judge: TypeAlias = RaceClient | Interpreted
"""Who verifies and races: the race client where there is a GPU, else the interpreter, which races nothing."""


@contextmanager
def judge_of(
    task: Task, target: Target, executor: Executor | None, policy: Policy, seed: int | None, progress: Progress
) -> Iterator[Judge]:
    """The judge for a target. It ends ``executor``, which by default is a worker process on this machine."""
    seed = secrets.randbits(31) if seed is None else seed
    if target.measured:
        with executor or executor_of("local")() as opened:
            opened.open(where_is(task))
            yield RaceClient(task, opened, policy, seed, progress)
        return
    if executor is not None:
        executor.close(wait=False)
    from tilewright.verify.quick import QuickChecker  # not loaded where a GPU verifies

    with closing(QuickChecker(task, target.board, seed)) as checker:
        yield Interpreted(checker, seed, progress)
