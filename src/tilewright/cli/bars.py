"""Progress bars on a terminal: one for each stage. The current work and the best result so far are below the bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from tilewright.progress import BEST


class Stages(Progress):
    """Progress bars. The current work and the best result so far are shown below them."""

    note = best = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note, style="dim")
        if self.best:
            yield Text(f"best so far: {self.best}")


def stages(console: Console, clock: Callable[[], float] = time.monotonic) -> Stages:
    """Returns a display with one bar for each stage, the time it has taken, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeColumn())
    return Stages(*columns, console=console, transient=True, get_time=clock)


class TimeColumn(ProgressColumn):
    """Shows the time that a stage has taken, and the time left, estimated from its speed in the last half minute."""

    def render(self, task: Task) -> Text:
        rest = "" if task.finished or task.time_remaining is None else f", about {_duration(task.time_remaining)} left"
        return Text(f"{_duration(task.finished_time or task.elapsed or 0)}{rest}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Bars:
    """Updates one bar for each stage, and the best result so far. May be called from several threads."""

    def __init__(self, bars: Stages) -> None:
        self._bars = bars
        self._stages: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None, note: str = "") -> None:
        if stage == BEST:
            self._bars.best = note
            return
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, total=total)
        self._bars.note = note
        self._bars.update(self._stages[stage], completed=done, total=total)
