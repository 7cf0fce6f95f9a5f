"""The actor that `executors.ray` starts on each GPU of a Ray cluster: it runs steps in a `Session`, or one command."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from tilewright.hardware.gpu import Monitor
from tilewright.hardware.machine import OtherMachine, this_machine
from tilewright.remote.serving import PrintingCommand, session_of
from tilewright.tools import child
from tilewright.worker.messages import Advanced, Step
from tilewright.worker.outcome import Answer, Outcome
from tilewright.worker.session import Session

Item = TypeVar("Item")


class GpuActor:
    """The actor. It has one GPU, and runs steps in a `Session`. Its working directory has the files of the task.

    worker: the command of the worker process; () for the usual one.
    """

    def __init__(self, worker: Sequence[str]) -> None:
        self._worker = worker
        self._stack = ExitStack()
        self._session: Session | None = None
        self._advanced = deque[Advanced]()
        self._printed = deque[tuple[int, str]]()

    def place(self) -> tuple[OtherMachine, str | None]:
        """Returns this machine, and why its GPU is not free; None if it is."""
        here = this_machine()
        return here, Monitor().busy() if here.gpu else None

    def open(self, where: str, files: Mapping[str, str]) -> None:
        """``where`` and the names of ``files``: relative to the working directory. ``files``: the text of each."""
        self.close()
        folder = self._stack.enter_context(child.workplace())
        self._session = session_of(Path.cwd(), where, files, folder, self._worker)
        self._stack.callback(self._session.close)

    def run(self, step: Step[Answer], silence: float | None) -> Outcome[Answer]:
        session = self._session
        assert session is not None, "a task is opened before a step runs"
        return Outcome.guarded(lambda: session.run(step, silence=silence, on_progress=self._advanced.append))

    def advanced(self) -> list[Advanced]:
        """Returns the progress since the last call."""
        return _taken(self._advanced)

    def start(self, words: Sequence[str], folder: str, columns: int) -> None:
        """Starts a Tilewright command in a folder below the working directory. It ends with this process."""
        self._command = PrintingCommand(
            [sys.executable, "-m", "tilewright", *words], Path(folder), {"COLUMNS": str(columns)},
            lambda to, line: self._printed.append((to, line)), own_session=True,
        )  # fmt: skip
        self._stack.enter_context(child.running(self._command.process.pid))

    def printed(self) -> tuple[list[tuple[int, str]], int | None]:
        """Returns what the command printed since the last call, to 1 or 2, and its exit code; None while it runs."""
        code = None if self._command.process.poll() is None else self._command.wait()
        return _taken(self._printed), code

    def close(self) -> None:
        self._stack.close()


def _taken(items: deque[Item]) -> list[Item]:
    """Takes what is there now. Another thread may add more."""
    return [items.popleft() for _ in range(len(items))]
