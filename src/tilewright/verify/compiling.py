"""The compiler's part of a check: whether a kernel compiles, and all cases of the plan ahead, in parallel."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tilewright.compile.compile import BUDGET_SECONDS, hints_of
from tilewright.errors import in_one_line
from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.languages.base import Language, Lowered
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.verify.cases import Case
from tilewright.verify.images import ROW_MAJOR, image_of

Job = tuple[Language, Lowered]


class Compiling:
    """Compiles the launches of one task as a check meets them; equal code once.

    ``to_machine_code``: with the compiler, for a GPU; else the front end alone.
    """

    def __init__(self, task: Task, board: Board, to_machine_code: bool) -> None:
        self.task, self.board, self.to_machine_code = task, board, to_machine_code
        self._known: dict[tuple[str, int, bytes], Built | Failed] = {}

    def __call__(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Failed | None:
        """Why the launch does not compile; None where it does."""
        job = self._lowered(configuration, dims, arrays)
        if isinstance(job, Failed):
            return job
        built = self._assembled(job) if self.to_machine_code else None
        return built if isinstance(built, Failed) else None

    def ahead(self, cases: Sequence[tuple[Configuration, Case]]) -> None:
        """Compiles what the cases will launch on all cores, into the cache that the launches look in."""
        if not self.to_machine_code:
            return
        jobs: dict[tuple[str, int, bytes], Job] = {}
        for configuration, case in cases:
            job = self._lowered(configuration, case.sizes, self._arrays(case))
            if not isinstance(job, Failed):
                jobs[job[1].identity] = job
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            outcomes = tuple(pool.map(self._assembled, jobs.values()))
        for (language, _), built in zip(jobs.values(), outcomes, strict=True):
            if isinstance(built, Built):
                language.remember([built])

    def _arrays(self, case: Case) -> dict[str, ArraySpec]:
        arrays = self.task.arrays(case.sizes)
        if case.layout == ROW_MAJOR:
            return arrays
        return {name: image_of(array, case.layout, 0).spec for name, array in arrays.items()}

    def _lowered(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Job | Failed:
        try:
            launch = self.task.launched(configuration, dims, arrays, self.board)
            language = language_of(launch.kernel)
        except Exception as error:  # the task's own code, for dimensions that it may not serve
            return Failed("launch", in_one_line(error))
        lowered = language.lower(launch, hints_of(self.task, configuration), configuration, self.board.arch)
        return lowered if isinstance(lowered, Failed) else (language, lowered)

    def _assembled(self, job: Job) -> Built | Failed:
        language, lowered = job
        if lowered.identity not in self._known:
            self._known[lowered.identity] = language.assemble(lowered, BUDGET_SECONDS)
        return self._known[lowered.identity]
