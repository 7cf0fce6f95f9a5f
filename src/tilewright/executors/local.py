"""The local executor: runs steps in a worker process on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from tilewright.executors.base import Answer, Executor, ignore
from tilewright.worker.early import WORKER
from tilewright.worker.messages import Advanced, Lost, Step
from tilewright.worker.outcome import Outcome
from tilewright.worker.session import Session


class Local(Executor):
    """Runs steps in a `Session`.

    command: starts the worker process.
    process: a worker process that is already running.
    device: the index of the GPU among the visible ones; None: the first.
    """

    name = "local"

    def __init__(
        self, command: Sequence[str] = WORKER, process: subprocess.Popen[str] | None = None, device: int | None = None
    ) -> None:
        self.session = Session(command=command, process=process, device=device)

    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        self.session.open(task, files)

    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Outcome[Answer]:
        given: Answer | Lost = self.session.run(step, silence=silence, on_progress=on_progress)
        return Outcome.of(given)

    def close(self, wait: bool = True) -> None:
        self.session.close(wait)

    def __exit__(self, *error: object) -> None:
        self.session.__exit__(*error)


EXECUTOR = Local


def local(process: subprocess.Popen[str] | None) -> Local | None:
    """Returns an executor for a worker process that was started early. Returns None if ``process`` is None."""
    return None if process is None else Local(process=process)
