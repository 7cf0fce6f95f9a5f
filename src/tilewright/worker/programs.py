"""Makes the `Program` that the worker launches, from a compiled candidate."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.compile.compile import Compiled, launch_of
from tilewright.errors import TaskError
from tilewright.languages import language_of
from tilewright.languages.base import TENSOR_MAP, Argument, ListArgument, Lowered
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
    return program(task.name, language.arguments(launch), launch.grid, lowered, compiled.built)


def program(task: str, arguments: Sequence[Argument], grid: tuple[int, ...], lowered: Lowered, built: Built) -> Program:
    """Returns the program of a cubin. Raises TaskError for ``arguments`` that do not fit the kernel."""
    numbers = [0 if isinstance(argument, ArraySpec | ListArgument) else argument for argument in arguments]
    try:
        values = _packed(numbers, lowered)
    except TypeError as error:
        raise TaskError(f"task '{task}': {error}") from None
    parameters = (
        _address(argument) or PackedNumber(value.hex()) for argument, value in zip(arguments, values, strict=True)
    )
    cubin = base64.b64encode(built.cubin).decode()
    return Program(cubin, built.symbol, grid, tuple(parameters), built.facts)


def _packed(numbers: Sequence[int | float], lowered: Lowered) -> list[bytes]:
    """Returns the bytes of the entry's arguments. Raises TypeError if there are not as many as parameters."""
    if lowered.parameters is None:
        return [value.tobytes() for value in bind(read_bytecode(lowered.code).entry(), numbers).values()]
    kinds = lowered.parameters
    if TENSOR_MAP in kinds:
        raise TaskError(
            f"{lowered.symbol}: the ptx route launches no descriptors made on the host; fix: make them in the kernel "
            "(tl.make_tensor_descriptor), or use route=tileir"
        )
    if len(kinds) != len(numbers):
        raise TypeError(f"{lowered.symbol} takes {len(kinds)} arguments, not {len(numbers)}")
    return [np.asarray(number).astype(dtype_named(kind)).tobytes() for number, kind in zip(numbers, kinds, strict=True)]


def dtype_named(kind: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of a parameter, of 64 bits for a ``pointer``."""
    return np.dtype("uint64" if kind == "pointer" else getattr(ml_dtypes, kind, kind))


def _address(argument: Argument) -> Pointer | Table | None:
    """Returns the parameter for an array or a list of arrays; None for a number."""
    if isinstance(argument, ArraySpec):
        return Pointer(argument.name)
    if not isinstance(argument, ListArgument):
        return None
    rows = ((Pointer(value.name) if isinstance(value, ArraySpec) else value for value in row) for row in argument.rows)
    return Table(tuple(map(tuple, rows)))
