"""What stands against a CUDA graph of a program's step: from its source, and from a trial in its process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.program.command import ProgramCommand
from tilewright.program.copies import program_copy
from tilewright.program.graphs.changes import backward_passes, distributed
from tilewright.program.graphs.finder import hazards_in
from tilewright.program.graphs.hazards import CaptureHazard
from tilewright.program.graphs.helpers import WARM_UP, WARM_UP_DISTRIBUTED
from tilewright.program.graphs.step import ProgramStep
from tilewright.program.graphs.trial import GraphTrial, tried
from tilewright.program.reading.module import ReadModule
from tilewright.program.reading.reach import reached_modules
from tilewright.program.run import ProgramFailed

SILENT = ("changed-address", "baked-value", "random-state")
"""Kinds that a capture accepts, and that make replays compute something else."""


@dataclass(frozen=True)
class GraphAnalysis:
    """The files of a program, what their source shows, and the trial. ``failed``: why there is no trial; "" if there is
    one, or if none was asked for."""

    modules: tuple[ReadModule, ...]
    has_step: bool
    source: tuple[CaptureHazard, ...]
    trial: GraphTrial | None = None
    failed: str = ""

    @property
    def hazards(self) -> tuple[CaptureHazard, ...]:
        """All that was found, in the order of files and lines. The source's words count where both name a line.

        If the model was captured and replayed rightly, only what the trial may not show remains of its forward pass.
        """
        right = self.trial is not None and self.trial.right
        read = (each for each in self.source if not (right and each.in_forward and each.kind not in SILENT))
        ran = self.trial.hazards if self.trial is not None and not right else ()
        found = {(each.path, each.line): each for each in (*ran, *read)}
        order = {module.path: n for n, module in enumerate(self.modules)}
        return tuple(sorted(found.values(), key=lambda each: (order.get(each.path, len(order)), each.line)))

    @property
    def in_forward(self) -> tuple[CaptureHazard, ...]:
        """What prevents a graph of the model alone."""
        return tuple(each for each in self.hazards if each.in_forward)

    @property
    def trains(self) -> bool:
        """Whether the steps of the program compute gradients: as in the trial, or else as its source shows."""
        if self.trial is not None and self.trial.captured is not None:
            return self.trial.trains
        return any(True for _ in backward_passes(self.modules))

    @property
    def no_step(self) -> str:
        """Why the program has nothing to capture; "" if it has a step."""
        if self.has_step:
            return ""
        return (
            f"{self.modules[0].path.name} has no step that could be captured: no loop calls a model or a function that "
            "trains one; put the work of one step into a function"
        )


def read_analysis(script: Path, root: Path | None = None) -> GraphAnalysis:
    """Returns what the source of a program shows. Runs nothing. Raises OSError."""
    modules = reached_modules(script, root)
    step = ProgramStep(modules)
    return GraphAnalysis(modules, step.found, hazards_in(step))


def analysed(command: ProgramCommand, seconds: float) -> GraphAnalysis:
    """Returns what the source shows, and what a trial in a copy of the program shows. Raises OSError.

    seconds: the time limit of the trial.
    """
    read = read_analysis(command.script, command.root)
    if not read.has_step:
        return read
    warm_up = WARM_UP_DISTRIBUTED if distributed(read.modules) else WARM_UP
    with program_copy(command, {}) as copy:
        trial = tried(copy, warm_up, seconds)
    if isinstance(trial, ProgramFailed):
        return GraphAnalysis(read.modules, read.has_step, read.source, failed=trial.last_line or trial.reason)
    return GraphAnalysis(read.modules, read.has_step, read.source, trial, trial.note)


def in_one_line(hazards: Sequence[CaptureHazard], most: int = 5) -> str:
    """Returns the hazards in one line, the first ``most`` of them."""
    said = "; ".join(f"{each.place}: {each.what} ({each.kind})" for each in hazards[:most])
    return said if len(hazards) <= most else f"{said}; and {len(hazards) - most} more"
