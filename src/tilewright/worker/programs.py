"""Makes the `Program` that the worker launches, from a compiled candidate."""

from __future__ import annotations

import base64

from tilewright.compile.compile import Compiled, launch_of
from tilewright.errors import TaskError
from tilewright.languages import language_of
from tilewright.languages.base import Argument, ListArgument
from tilewright.records import Built, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.run.interpreter import bind
from tilewright.worker.messages import PackedNumber, Pointer, Program, Table


def program_of(task: Task, compiled: Compiled) -> Program:
    """Returns the program of a candidate that compiled. Raises TaskError for arguments that do not fit the kernel."""
    assert isinstance(compiled.built, Built), "only what compiled can be launched"
    launch, hints = launch_of(task, compiled.unit)
    language = language_of(launch.kernel)
    lowered = language.lower(launch, hints, compiled.unit.configuration, compiled.unit.board.arch)
    assert not isinstance(lowered, Failed), "it was lowered before it compiled"
    arguments = language.arguments(launch)
    numbers = [0 if isinstance(argument, ArraySpec | ListArgument) else argument for argument in arguments]
    try:
        values = bind(read_bytecode(lowered.code).entry(), numbers)
    except TypeError as error:
        raise TaskError(f"task '{task.name}': {error}") from None
    parameters = (
        _address(argument) or PackedNumber(value.tobytes().hex())
        for argument, value in zip(arguments, values.values(), strict=True)
    )
    return Program(base64.b64encode(compiled.built.cubin).decode(), lowered.symbol, launch.grid, tuple(parameters))


def _address(argument: Argument) -> Pointer | Table | None:
    """Returns the parameter for an array or a list of arrays; None for a number."""
    if isinstance(argument, ArraySpec):
        return Pointer(argument.name)
    if not isinstance(argument, ListArgument):
        return None
    rows = ((Pointer(value.name) if isinstance(value, ArraySpec) else value for value in row) for row in argument.rows)
    return Table(tuple(map(tuple, rows)))
