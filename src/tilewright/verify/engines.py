"""Which engine a check runs on: the GPU of this machine, or the interpreter."""

from __future__ import annotations

from tilewright.errors import NoGpu, UnknownChoice
from tilewright.hardware.architectures import ARCHITECTURES, Board, default_board
from tilewright.hardware.gpu import detect
from tilewright.task.task import Task
from tilewright.verify.engine import Engine

ENGINES = ("interpreter", "gpu")


def engine_name(name: str | None) -> str:
    """The engine to use: the GPU where there is one that the compiler knows, unless another is named.

    Raises UnknownChoice for a name that is none, NoGpu where a GPU is asked for and there is none.
    """
    gpu = detect()
    if name is None:
        return "gpu" if gpu is not None and gpu.arch in ARCHITECTURES else "interpreter"
    if name not in ENGINES:
        raise UnknownChoice("engine", name, ENGINES)
    if name == "gpu" and gpu is None:
        raise NoGpu("--engine gpu needs a GPU, and there is none here; --engine interpreter needs none")
    return name


def made(name: str, task: Task, board: Board) -> Engine:
    """The engine of that name for one task."""
    if name == "gpu":
        from tilewright.verify.on_gpu import GpuEngine

        return GpuEngine(task)
    from tilewright.verify.interpreted import InterpreterEngine

    return InterpreterEngine(task, board)


def board_here(engine: str, arch: str) -> Board:
    """The GPU's own board where it is the engine, else the default one of ``arch``."""
    gpu = detect()
    if engine == "gpu" and gpu is not None:
        return gpu.board
    return default_board(arch)
