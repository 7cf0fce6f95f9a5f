"""The protocol of an executor, which runs the steps of `worker.messages` one after the other.

    class Inline(Executor):
        name = "inline"

        def open(self, task, files=None): ...       # starts with a task and returns at once
        def run(self, step, *, silence=None, on_progress=ignore): ...
        def close(self, wait=True): ...

    EXECUTOR = Inline

Put the file into this folder, or name it in the entry point group ``tilewright.executors`` of your package.
`tilewright.testing.executors.ExecutorContract` tests it. If a candidate crashes or hangs the process, `run` returns
`Lost` with the reason, and the next step runs normally.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

from tilewright.worker.messages import Advanced, Lost, Step

Answer = TypeVar("Answer")
Entered = TypeVar("Entered", bound="Executor")


def ignore(advanced: Advanced) -> None:
    """Ignores progress."""


class Executor(ABC):
    """Runs the steps of one task. The end of its ``with`` block closes it. ``name``: how users choose it."""

    name: str

    @abstractmethod
    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        """Starts with the task that checks all steps. ``task`` and ``files``: as in `loading.load_task`."""

    @abstractmethod
    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Answer | Lost:
        """Runs a step, and returns its answer, or `Lost` with the reason. ``silence``: seconds without progress after
        which the step counts as hung. Raises TaskError for an error in the task, MachineError if no step can run."""

    @abstractmethod
    def close(self, wait: bool = True) -> None:
        """Ends the executor. ``wait``: returns only when it has ended."""

    def __enter__(self: Entered) -> Entered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(wait=False)
