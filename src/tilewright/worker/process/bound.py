"""Binds a configuration of a task to torch's tensors, through the task's launch function and its language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.launching.driver import ProgramLaunch
from tilewright.records import Configuration, Failed, Workload
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.worker.process.backends import Runner

Tensors = Mapping[str, Any]

ALIGNMENT = 256  # bytes; offsets count from a multiple of this, and torch's allocations start at a multiple of 512


@dataclass(frozen=True)
class BoundLaunch:
    """A function that launches a kernel once on a stream, and the exact name of the compiled entry."""

    launch: Runner
    kernel: str
    tables: int = 0
    """The number of arguments that are lists. For each of them, a launch copies a table of addresses from the host."""


def bound(task: Task, config: Configuration, dims: Dims, board: Board, tensors: Tensors) -> BoundLaunch:
    from tilewright.compile.compile import hints_of  # a worker that gets programs loads no compiler

    launch = task.launched(config, dims, tensors, board)
    language, hints = language_of(launch.kernel), hints_of(task, config)
    if language.launched_by_driver:
        return _bound_by_driver(task, config, dims, board, tensors)
    launch, zeroed = _with_scratch(launch, tensors)
    name = language.entry_name(launch, hints, config, board.arch)
    runner = _zeroing(language.runner(launch, hints), zeroed)
    return BoundLaunch(runner, name, sum(isinstance(arg, list) for arg in launch.args))


def _with_scratch(launch: Launch, tensors: Tensors) -> tuple[Launch, list[Any]]:
    """Returns the launch with tensors in place of its scratch (`task.tensors.scratch`), and these tensors."""
    made: list[Any] = []

    def given(arg: Any) -> Any:
        if not isinstance(arg, ArraySpec) or not arg.scratch:
            return arg
        import torch

        device = next(iter(tensors.values())).device
        made.append(torch.zeros(arg.shape, dtype=getattr(torch, arg.dtype), device=device))
        return made[-1]

    return replace(launch, args=tuple(map(given, launch.args))), made


def _zeroing(runner: Runner, zeroed: Sequence[Any]) -> Runner:
    """Returns a launch that sets the tensors ``zeroed`` to zero before, on the same stream."""
    if not zeroed:
        return runner

    def run(stream: int | None) -> None:
        import torch

        with torch.cuda.stream(None if stream is None else torch.cuda.ExternalStream(stream)):
            for tensor in zeroed:
                tensor.zero_()
        runner(stream)

    return run


def _bound_by_driver(task: Task, config: Configuration, dims: Dims, board: Board, tensors: Tensors) -> BoundLaunch:
    """Returns a launch through the driver. Compiles the cubin if `Language.found` has none."""
    from tilewright.compile.compile import Unit
    from tilewright.worker.programs import built_here

    arrays = {name: _specification(name, tensor) for name, tensor in tensors.items()}
    built = built_here(task, Unit(Workload("", dims), config, board), arrays)
    if isinstance(built, Failed):
        raise RuntimeError(f"{built.stage}: {built.reason}")
    return BoundLaunch(ProgramLaunch(built[0], tensors, aligned=False), built[0].symbol)


def _specification(name: str, tensor: Any) -> ArraySpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return ArraySpec(name, tuple(tensor.shape), dtype, tuple(tensor.stride()), int(tensor.data_ptr()) % ALIGNMENT)
