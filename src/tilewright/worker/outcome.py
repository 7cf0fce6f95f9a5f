"""The outcome of a step: a status word, and the answer or the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, get_args

from tilewright.errors import MachineError, TaskError, TilewrightError, in_one_line

Answer = TypeVar("Answer")

Status = Literal[
    "PASSED", "FAILED", "TIMEOUT", "HANG_DETECTED", "OUT_OF_MEMORY", "CANCELLED", "ERROR", "BUILD_FAILED"
]  # fmt: skip
STATUSES: tuple[Status, ...] = get_args(Status)
"""How a step can end, with every executor:

    PASSED          the step has its answer
    FAILED          a candidate crashed, broke the GPU's context or could not be launched
    TIMEOUT         the step took longer than a step may take
    HANG_DETECTED   the step made no progress for too long
    OUT_OF_MEMORY   a candidate needed more memory than there is
    CANCELLED       the step was stopped on purpose
    ERROR           the place where steps run failed; this says nothing about a candidate
    BUILD_FAILED    the task, or the environment for it, could not be set up
"""


@dataclass(frozen=True)
class Outcome(Generic[Answer]):
    """How a step ended. ``answer`` is None unless ``status`` is ``PASSED``; then ``reason`` says why in one line."""

    status: Status
    answer: Answer | None = None
    reason: str = ""
    at: int | None = None
    """The index of the candidate that was running, if the worker announced it."""

    @classmethod
    def guarded(cls, run: Callable[[], Outcome[Answer]]) -> Outcome[Answer]:
        """Returns the outcome of a step that runs on another machine than its caller: an error is an outcome, too."""
        try:
            return run()
        except MachineError as error:
            return cls("ERROR", reason=str(error))
        except TilewrightError as error:
            return cls("BUILD_FAILED", reason=str(error))
        except Exception as error:  # told to the user as our mistake
            return cls("ERROR", reason=f"a mistake in Tilewright: {in_one_line(error)}")

    def raised(self, where: str) -> Outcome[Answer]:
        """Raises the errors that `guarded` made outcomes. ``where``: the name of the other machine."""
        if self.status == "BUILD_FAILED":
            raise TaskError(self.reason)
        if self.status == "ERROR":
            raise MachineError(f"{where}: {self.reason}")
        return self
