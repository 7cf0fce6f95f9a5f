"""One observed run of a user's program: the times of its steps, its outputs, and the operations that ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tilewright.program.copies import Startable
from tilewright.progress import Progress, silent

StepUnit: TypeAlias = Literal["optimizer step", "forward call", "process"]
"""What a step is: a step of the first optimizer; without one, a call of the first outermost module; else the run."""
RunStage: TypeAlias = Literal["start", "exit", "time limit", "record"]


@dataclass(frozen=True)
class ObservedTensor:
    """What is kept of a tensor that a program computed."""

    name: str
    """Such as ``step 1 output 0``, ``step 1 loss 0`` or ``step 1 parameter 12``."""
    shape: tuple[int, ...]
    dtype: str
    digest: int
    """Differs if a bit of the tensor differs."""
    not_finite: int
    """How many values are NaN or infinite."""
    sample: tuple[float, ...] = field(repr=False)
    """Values at evenly spaced places, as float64."""


@dataclass(frozen=True)
class ProgramOutputs:
    """What a run computed in its first steps, and some later ones."""

    tensors: tuple[ObservedTensor, ...]
    calls: tuple[tuple[int, int], ...]
    """For each step, the number of calls of outermost modules and of backward."""
    eps: float
    """Spacing of the numbers near 1 in the least precise type that the program computes in."""


@dataclass(frozen=True)
class ProgramRun:
    """One run of a program."""

    unit: StepUnit
    steps: int
    """How many steps were made."""
    cut: Literal["", "steps", "seconds"]
    """Why the run was ended before the program's end; empty if it was not."""
    step_us: tuple[float, ...] = field(repr=False)
    """Times of the steps that were not slowed by recording, in µs and in order; empty if the unit is the process."""
    wall_s: float
    device: str
    """``cpu``, or the name of the GPU."""
    operations: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Name → count over some steps; empty if they were not recorded."""
    kernels: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Name → count of the GPU's kernels and copies, over the same steps."""
    outputs: ProgramOutputs | None = field(default=None, repr=False)
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)


@dataclass(frozen=True)
class ProgramFailed:
    """A run that gave nothing. ``last_line``: the last line on standard error."""

    stage: RunStage
    reason: str
    exit_code: int | None = None
    last_line: str = ""


def run_program(
    program: Startable, *, steps: int = 20, seconds: float = 300.0, outputs: bool = False, nudged: bool = False,
    progress: Progress = silent,
) -> ProgramRun | ProgramFailed:  # fmt: skip
    """Runs a program with the observing hook, in a process group of its own.

    The program is ended after ``steps`` steps that were timed. If it has no steps, it runs to its end.

    seconds: the program is ended after its next step when so much time has passed; shortly later it is killed.
    outputs: also records outputs and operations, which slows the steps; race without.
    nudged: changes each parameter by about one unit in the last place before its first use. The difference to a run
    without is what rounding does to this program: the ``noise`` of `outputs.compare`.
    """
    raise NotImplementedError
