"""Predicts the time of a fused kernel, and of the two launches that it replaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.errors import TilewrightError
from tilewright.inspect.inspect import inspect
from tilewright.runtime.capture import facts
from tilewright.runtime.capture.described import DescribedLaunch
from tilewright.runtime.capture.draft import TaskDraft
from tilewright.runtime.capture.guessing import loaded
from tilewright.runtime.capture.scaling import NOTHING
from tilewright.runtime.capture.task_file import work_of
from tilewright.task.task import Task


@dataclass(frozen=True)
class PredictedTimes:
    """The predicted times in µs. A launch that does not compile has no time, and ``problem`` says why."""

    board: str
    apart_us: tuple[float, ...]
    fused_us: float = 0.0
    problem: str = ""

    @property
    def speedup(self) -> float:
        return sum(self.apart_us) / self.fused_us

    def __str__(self) -> str:
        if self.problem:
            return f"not predicted: {self.problem}"
        apart = " + ".join(f"{each:.1f}" for each in self.apart_us)
        return f"predicted on {self.board}: {self.fused_us:.1f} µs, the two launches {apart} µs ({self.speedup:.2f}×)"


def predicted_times(launches: Iterable[DescribedLaunch], fused: Task, folder: Path) -> PredictedTimes:
    """Predicts the shipped configurations. folder: tasks of the two launches are written there for a moment."""
    try:
        return _predicted(launches, fused, folder)
    except TilewrightError as error:  # a compiler that is missing or broken says nothing about a kernel
        return PredictedTimes("", (), problem=str(error))


def _predicted(launches: Iterable[DescribedLaunch], fused: Task, folder: Path) -> PredictedTimes:
    times: list[float] = []
    for launch in launches:
        draft = TaskDraft(facts.captured_launch(launch), "", None, scaling=NOTHING)
        with loaded(draft, folder) as task:
            draft = replace(draft, work=work_of(task))
        with loaded(draft, folder) as task:
            time = _time(task)
        if time.problem:
            return time
        times.append(time.fused_us)
    return replace(_time(fused), apart_us=tuple(times))


def _time(task: Task) -> PredictedTimes:
    (found,) = inspect(task, config=str(task.space.shipped))
    predicted = found.candidate.predicted
    if predicted is None:
        return PredictedTimes(found.board.name, (), problem=f"{task.name}: {found.candidate.reason}")
    return PredictedTimes(found.board.name, (), predicted.us)
