"""What an executor is: a place where the steps of `worker.messages` run, one after the other.

    class Inline(Executor):
        name = "inline"

        def open(self, task, files=None): ...       # begin with a task; returns at once
        def run(self, step, *, silence=None, on_progress=ignore): ...
        def close(self, wait=True): ...

    EXECUTOR = Inline

Put the file into this folder, or name it in the entry point group ``tilewright.executors`` of your package;
`tilewright.testing.executors.ExecutorContract` tests it. What a candidate does to the executor is an outcome:
`run` returns `Lost` with the reason, and the next step runs as if nothing had happened.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

from tilewright.worker.messages import Advanced, Lost, Step

Answer = TypeVar("Answer")
Entered = TypeVar("Entered", bound="Executor")


def ignore(advanced: Advanced) -> None:
    """Takes no notice of progress."""


class Executor(ABC):
    """Runs the steps of one task. ``name`` is what it is chosen by. Use it as a context."""

    name: str

    @abstractmethod
    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        """Names the task that judges all steps. ``task`` and ``files``: as `loading.load_task` takes them."""

    @abstractmethod
    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Answer | Lost:
        """The outcome of a step: its answer, or why it has none.

        silence: seconds without a sign of life after which the step counts as hung.
        on_progress: called as the step advances.

        Raises TaskError for what is wrong with the task, MachineError where steps cannot run at all.
        """

    @abstractmethod
    def close(self, wait: bool = True) -> None:
        """Ends what runs. ``wait``: until it has ended."""

    def __enter__(self: Entered) -> Entered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(wait=False)
