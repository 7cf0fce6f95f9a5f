"""Decides how the worker launches a compiled candidate: as a `Program` if the launch is possible without host code."""

from __future__ import annotations

import base64
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.compile.compile import BUDGET_SECONDS, Arrays, Compiled, Unit, lower, remember
from tilewright.errors import TaskError, ToolFailed
from tilewright.languages.base import Argument, DescriptorParameter, Identity, ListArgument, Lowered
from tilewright.machine_code import elf
from tilewright.race.rules import Policy
from tilewright.records import Built, Failed, TensorMapLayout
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.run.interpreter import bind
from tilewright.worker.messages import (
    TENSOR_MAP_BYTES,
    Configured,
    PackedNumber,
    Parameter,
    Pointer,
    Program,
    Source,
    Table,
    TensorMap,
)


def source_of(task: Task, compiled: Compiled, policy: Policy) -> Source:
    """Returns the object by which the worker launches a compiled configuration of its own task.

    Usually the object is a `Program`: the worker then needs neither the front end nor the launch function. In three
    cases the object is a `Configured`, and the cubin is stored where the language's own launch finds it:

    - an eager launch is timed, which includes the language's own launch;
    - arrays share memory, which is part of the launch's signature;
    - the code is not Tile IR and does not list its parameters, so only the language can launch it.
    """
    lowered = lower(task, compiled.unit)
    assert not isinstance(lowered, Failed), "it was lowered before it compiled"
    shares = any(output.in_place_of for output in task.outputs.values())
    if policy.launch == "eager" or shares or not (lowered[1].is_tile_ir or lowered[1].parameters is not None):
        remember(task, [compiled])
        return Configured(compiled.unit.configuration)
    return program_of(task, compiled)


def program_of(task: Task, compiled: Compiled) -> Program:
    """Returns the program of a compiled candidate. Raises TaskError for arguments that do not fit the kernel."""
    assert isinstance(compiled.built, Built), "only what compiled can be launched"
    lowered = lower(task, compiled.unit)
    assert not isinstance(lowered, Failed), "it was lowered before it compiled"
    language, code, launch = lowered
    return program(task.name, language.arguments(launch), launch.grid, code, compiled.built)


def built_here(
    task: Task, unit: Unit, arrays: Arrays, known: MutableMapping[Identity, Built] | None = None
) -> tuple[Program, Launch] | Failed:
    """Compiles a configuration in this process, unless its language has the cubin. Returns its program and launch.

    The launch function gets only specifications of arrays, so the program is the same for all arrays like ``arrays``.
    known: cubins by the identity of their code. A cubin that is compiled or found here is added.
    Raises what the language raises, such as CompilerMissing.
    """
    lowered = lower(task, unit, arrays)
    if isinstance(lowered, Failed):
        return lowered
    language, code, launch = lowered
    built = (known or {}).get(code.identity) or language.found(code) or language.assemble(code, BUDGET_SECONDS)
    if isinstance(built, Failed):
        return built
    if known is not None:
        known[code.identity] = built
    return program(task.name, language.arguments(launch), launch.grid, code, built), launch


def program(task: str, arguments: Sequence[Argument], grid: tuple[int, ...], lowered: Lowered, built: Built) -> Program:
    """Returns the program of a cubin.

    Raises TaskError for ``arguments`` that do not fit the kernel, and ToolFailed if the sizes of the cubin's parameters
    differ.
    """
    try:
        if lowered.parameters is None:
            parameters = _of_tile_ir(arguments, lowered)
        else:
            parameters = tuple(_of_entry(arguments, lowered.symbol, lowered.parameters, built.facts.tensor_maps))
            if not lowered.is_tile_ir:  # cubins of tile kernels with asynchronous copies do not list their parameters
                _compare_sizes(parameters, built)
    except TypeError as error:
        raise TaskError(f"task '{task}': {error}") from None
    cubin = base64.b64encode(built.cubin).decode()
    return Program(cubin, built.symbol, grid, parameters, built.facts)


def _of_tile_ir(arguments: Sequence[Argument], lowered: Lowered) -> tuple[Parameter, ...]:
    numbers = [0 if isinstance(argument, ArraySpec | ListArgument) else argument for argument in arguments]
    values = bind(read_bytecode(lowered.code).entry(), numbers).values()
    return tuple(
        _address(argument) or PackedNumber(value.tobytes().hex())
        for argument, value in zip(arguments, values, strict=True)
    )


def _of_entry(
    arguments: Sequence[Argument], symbol: str, kinds: Sequence[str | DescriptorParameter],
    layouts: Sequence[TensorMapLayout],
) -> Iterator[Parameter]:  # fmt: skip
    """Yields the parameters of the compiled entry.

    layouts: the layouts of the descriptors. It is empty if the compiler replaced the descriptors by pointers.
    """
    wanted = sum(1 + 2 * kind.axes if isinstance(kind, DescriptorParameter) else 1 for kind in kinds)
    if wanted != len(arguments):
        raise TypeError(f"{symbol} takes {wanted} arguments, not {len(arguments)}")
    left, maps = iter(arguments), iter(layouts)
    for kind in kinds:
        argument = next(left)
        if isinstance(kind, DescriptorParameter):
            assert isinstance(argument, ArraySpec), "a descriptor begins with its tensor"
            lengths = [next(left) for _ in range(2 * kind.axes)]
            yield from _of_descriptor(argument, lengths, kind, next(maps, None))
        else:
            yield _address(argument) or packed(argument, kind)


def _of_descriptor(
    array: ArraySpec, lengths: Sequence[Argument], kind: DescriptorParameter, layout: TensorMapLayout | None
) -> Iterator[Parameter]:
    shape, strides = lengths[: kind.axes], lengths[kind.axes :]
    if layout is not None:
        yield TensorMap(array.name, array.shape, array.strides, kind.flags[0], layout)
    else:
        yield Pointer(array.name)
        yield from (packed(length, "int64") for length in lengths)
        yield from (packed(flag, "bool") for flag in kind.flags)
    yield from (packed(extent, "int32") for extent in shape)
    yield from (packed(stride, "int64") for stride in strides)


def packed(number: Any, kind: str) -> PackedNumber:
    """Returns the bytes of a number of this dtype. A ``pointer`` is a number of 64 bits."""
    dtype = np.dtype("uint64" if kind == "pointer" else getattr(ml_dtypes, kind, kind))
    return PackedNumber(np.asarray(number).astype(dtype).tobytes().hex())


def size_of(parameter: Parameter) -> int:
    """Returns the size of a parameter in bytes."""
    if isinstance(parameter, PackedNumber):
        return len(parameter.data) // 2
    return TENSOR_MAP_BYTES if isinstance(parameter, TensorMap) else 8


def _compare_sizes(parameters: Sequence[Parameter], built: Built) -> None:
    """Raises ToolFailed if the launch's parameters differ in size from the parameters that the code reads.

    Such a launch would read memory out of bounds.
    """
    ours = (*map(size_of, parameters), *[8] * len(built.facts.scratch))
    if (theirs := elf.parse(built.cubin).parameters) != ours:
        raise ToolFailed(
            f"{built.symbol}: the cubin's parameters have {theirs} bytes, the launch passes {ours}; "
            "fix: use a version of the compiler that `tilewright doctor` calls tested"
        )


def _address(argument: Argument) -> Pointer | Table | None:
    """Returns the parameter for an array or a list of arrays; None for a number."""
    if isinstance(argument, ArraySpec):
        return Pointer(argument.name, argument.nbytes if argument.scratch else 0)
    if not isinstance(argument, ListArgument):
        return None
    rows = ((Pointer(value.name) if isinstance(value, ArraySpec) else value for value in row) for row in argument.rows)
    return Table(tuple(map(tuple, rows)))
