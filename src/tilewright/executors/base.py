"""Defines the protocol of an executor, which runs the steps of `worker.messages` one after the other.

    class Inline(Executor):
        name = "inline"

        def open(self, task, files=None): ...       # starts the executor for a task and returns at once
        def run(self, step, *, silence=None, on_progress=ignore): ...    # returns an Outcome
        def close(self, wait=True): ...

    EXECUTOR = Inline

Put the file into this folder, or name the executor in the entry point group ``tilewright.executors`` of your package.
Test it with `tilewright.testing.executors.ExecutorContract`. If a candidate crashes or hangs the process, `run` must
return an outcome with the status word and the reason, and the next step must run normally.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from tilewright.errors import RequestError
from tilewright.hardware.machine import OtherMachine
from tilewright.worker.messages import Advanced, Step
from tilewright.worker.outcome import Outcome

Answer = TypeVar("Answer")
Entered = TypeVar("Entered", bound="Executor")


def ignore(advanced: Advanced) -> None:
    """Does nothing. This is the default of ``on_progress``."""


class StepRunner(Protocol):
    """Runs steps and returns their outcomes. `worker.client` needs no other method of an executor."""

    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Outcome[Answer]:
        """Runs a step; see `Executor.run`."""


class Executor(ABC):
    """Runs the steps of one task. Users select an executor by its ``name``. A ``with`` block closes it at the end."""

    name: str
    choice: ClassVar[str] = ""
    """How the executor is written after ``--on``, such as ``ssh:HOST``; "": its name."""

    @classmethod
    def at(cls: type[Entered], where: str) -> Entered:
        """Returns an executor for ``where``, the part after the colon of ``--on NAME:WHERE``; "" if there is none.

        Raises RequestError if the executor takes no such part, or needs one.
        """
        if where:
            raise RequestError(f"--on {cls.name}:{where}: {cls.name} takes nothing after it; fix: --on {cls.name}")
        return cls()

    on: str = ""
    """What the user gave for ``--on``; "" if the executor was made otherwise."""

    say: Callable[[str], None] = staticmethod(lambda remark: None)
    """Called with each remark for the user."""

    def place(self, task: str) -> OtherMachine | None:
        """Returns the machine on which the steps run; None: this machine. May connect to it and set it up for the task.

        Raises MachineError if it cannot be used.
        """
        return None

    def others(self, most: int) -> Sequence[Executor]:
        """Returns at most ``most`` further executors that may share the workloads of a run. Each has a GPU of its own,
        of the model that `place` told.
        """
        return ()

    def seed(self) -> int:
        """Returns the seed for a run whose user named none. A run that is taken up again gets its first seed."""
        return secrets.randbits(31)

    def command(
        self, words: Sequence[str], task: str | None, paths: Sequence[Path] = (), files: bool = True,
        store: Path | None = None,
    ) -> int:  # fmt: skip
        """Runs a Tilewright command as a whole, prints what it prints, and returns its exit code.

        Files, runs and commits that it leaves are brought back, as if it had run here.

        words: the command's words without ``--on``. task: the one among them that names a task; None if there is none.
        paths: those among the words that name other files to read or to write.
        files: whether the command needs the files of this folder.
        store: the store of tuned kernels, if the command reads it.
        Raises RequestError if the executor runs only steps.
        """
        raise RequestError(f"{self.name} runs the steps of tune, but no whole command such as {words[0]}")

    def set_up(self) -> tuple[str, Sequence[tuple[str, str]]]:
        """Returns what is being set up, and what was set up before it as pairs of name and detail, for `doctor`."""
        return "connection", ()

    @abstractmethod
    def open(self, task: str, files: Mapping[str, str] | None = None) -> None:
        """Starts the executor for one task. All results are checked against the reference of this task.

        task: ``FILE`` or ``FILE:TASK``.
        files: maps the absolute path of an editable file to the absolute path of the copy to load instead.
        """

    @abstractmethod
    def run(
        self, step: Step[Answer], *, silence: float | None = None, on_progress: Callable[[Advanced], None] = ignore
    ) -> Outcome[Answer]:
        """Runs a step. Returns its answer, or the status word and the reason why there is none.

        silence: a step counts as hung after this many seconds without progress; None: the executor's default.
        on_progress: called with each progress report.

        Raises TaskError for an error in the task, MachineError if no step can run.
        """

    @abstractmethod
    def close(self, wait: bool = True) -> None:
        """Ends the executor. With ``wait``, returns only after the executor has ended."""

    def __enter__(self: Entered) -> Entered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(wait=False)
