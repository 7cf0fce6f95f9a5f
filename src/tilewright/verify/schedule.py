"""What stands around the cases of a check: the time they may take, and the tools that run beside them.

The compiler works ahead on all cores, compute-sanitizer watches one case in processes of its own, and the trusted
implementation runs in a process that has torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import TracebackType

from tilewright.hardware.architectures import Board
from tilewright.progress import Progress
from tilewright.records import Configuration
from tilewright.task.task import Task
from tilewright.verify.addresses import Reaching
from tilewright.verify.cases import Case
from tilewright.verify.compiling import Compiling
from tilewright.verify.engines import made
from tilewright.verify.examining import Examiner, Result
from tilewright.verify.planning import Planned
from tilewright.verify.trusted import Trusted
from tilewright.verify.watching import Watching

FAILURES = 8
"""After so many wrong cases the others are not run: the answer is known."""


class Equipment:
    """Engine and tools for one task; a context manager that ends them."""

    def __init__(self, task: Task, engine: str, board: Board, quick: bool) -> None:
        on_gpu = engine == "gpu"
        with ExitStack() as stack:
            trusted = stack.enter_context(closing(Trusted(task, "cuda" if on_gpu else "cpu")))
            self.trusted = trusted if task.trusted is not None else None
            self.engine = stack.enter_context(closing(made(engine, task, board)))
            self.watching = stack.enter_context(closing(Watching(task, quick or not on_gpu)))
            self.compiling = Compiling(task, board, to_machine_code=on_gpu)
            self.reaching = Reaching(task, board)
            self._stack = stack.pop_all()

    def ahead(self, cases: Sequence[tuple[Configuration, Case]]) -> None:
        """Compiles all cases, and starts the tools that watch the first."""
        self.compiling.ahead(cases)
        self.watching.start(*cases[0])

    def __enter__(self) -> Equipment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def run_and_judge(
    examiner: Examiner, planned: Sequence[Planned], until: float, seconds: float, progress: Progress
) -> tuple[list[Result], list[tuple[Planned, str]]]:
    """The results in the order of the plan, and what was not run with the reason.

    until: by `time.perf_counter`, when no further case is begun; the first always is. ``seconds``: the same, as asked.
    """
    results: list[Result] = []
    skipped: list[tuple[Planned, str]] = []
    failures = 0
    for number, step in enumerate(planned):
        if failures >= FAILURES:
            skipped.append((step, f"not run: {failures} cases are incorrect already"))
        elif results and time.perf_counter() > until:
            skipped.append((step, f"not run within {seconds:g} s"))
        else:
            progress("check", number, len(planned), step.case.described)
            results.append(examiner.examine(step.configuration, step.case))
            failures += results[-1].verdict == "incorrect"
    progress("check", len(planned), len(planned))
    return results, skipped
