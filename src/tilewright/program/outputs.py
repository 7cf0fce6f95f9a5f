"""Compares what two versions of a program computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tilewright.program.run import ProgramRun

SameOutputs: TypeAlias = Literal["equal", "within tolerance", "different", "unverified"]


@dataclass(frozen=True)
class ComparedRuns:
    """The verdict on the outputs of a changed program."""

    verdict: SameOutputs
    reason: str
    """One line; for ``different``, with the place."""
    worst: float | None = None
    """The largest ratio of a difference to its tolerance; above 1 is different. None if nothing was compared."""

    @property
    def right(self) -> bool:
        """Whether the changed program computes the same, up to rounding."""
        return self.verdict in ("equal", "within tolerance")


def compare(before: ProgramRun, after: ProgramRun, noise: ProgramRun | None) -> ComparedRuns:
    """Compares the outputs of a changed program with those of the unchanged one.

    noise: another run of the unchanged program, best made with ``nudged=True``.
    """
    raise NotImplementedError
