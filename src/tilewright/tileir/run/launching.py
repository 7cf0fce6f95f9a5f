"""Prepares a launch of any language for the interpreter: lowers the kernel, reads the Tile IR, binds the arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from tilewright.compile.compile import hints_of
from tilewright.errors import TaskError, ToolFailed, in_task
from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.languages.base import Argument, ListArgument
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ITEM_BYTES, ArraySpec, Dims, scratch_of, span
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import TileModule
from tilewright.tileir.run.interpreter import Executed, run
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.run.samples import Samples
from tilewright.tileir.watch.allocations import Allocation
from tilewright.tileir.watch.arrays import Array
from tilewright.tileir.watch.decisions import Decisions


@dataclass(frozen=True)
class Runnable:
    """A launch whose kernel was read as Tile IR. The arguments are in the order of the entry's parameters."""

    launch: Launch
    module: TileModule
    arguments: tuple[Argument, ...]
    code: bytes
    stand_in: str = ""
    """How this Tile IR differs from the compiled code, in words (`Language.stand_in`); empty if it is the same code."""

    def bound(self, addresses: Mapping[str, int], memory: Memory) -> tuple[int | float, ...]:
        return bound(self.arguments, addresses, memory)

    def dry_run(
        self,
        arrays: Mapping[str, ArraySpec],
        *,
        sample: int | None = None,
        most_elements: float = math.inf,
        seed: int | None = 0,
        data: Callable[[str], Array | None] = lambda name: None,
        seconds: float = math.inf,
        decisions: Decisions | None = None,
        recorded: Mapping[str, bool] = MappingProxyType({}),
        samples: Samples | None = None,
        only: Sequence[int] | None = None,
        checks_assumptions: bool = True,
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> tuple[Executed, tuple[Allocation, ...]]:
        """Runs the kernel, but computes only addresses and control flow. The tensors get addresses without memory.

        data: takes the name of a tensor on which addresses or control flow depend. Returns the tensor's elements, or
            None if the elements are not known.
        Other parameters and errors are the same as in `interpreter.run`.
        Returns the observations, and the allocations of the tensors and lists.
        """
        memory = Memory(watch=False)
        spans = {name: span(each.shape, each.strides) * ITEM_BYTES[each.dtype] for name, each in arrays.items()}
        placed = {name: memory.reserve(name, size, partial(data, name)) for name, size in spans.items()}
        placed |= {each.name: memory.reserve(each.name, each.nbytes) for each in scratch_of(self.arguments)}
        arguments = self.bound({name: tensor.address for name, tensor in placed.items()}, memory)
        executed = run(
            self.module, arguments, self.launch.grid, memory, dry=True, sample=sample, most_elements=most_elements,
            seed=seed, seconds=seconds, decisions=decisions, recorded=recorded, samples=samples, only=only,
            checks_assumptions=checks_assumptions, on_progress=on_progress,
        )  # fmt: skip
        return executed, (*placed.values(), *memory.lists)


def zeros_of(array: ArraySpec) -> Array:
    """Returns zeros of the size of an array, as unsigned integers."""
    return np.zeros(array.shape, f"u{ITEM_BYTES[array.dtype]}")


def bound(arguments: Sequence[Argument], addresses: Mapping[str, int], memory: Memory) -> tuple[int | float, ...]:
    """Returns ``arguments`` with an address in place of each array. Puts the rows of list arguments into ``memory``,
    and the scratch arrays without an address."""
    fresh = [each for each in scratch_of(arguments) if each.name not in addresses]
    addresses = {**addresses, **{each.name: memory.allocate(each.name, zeros_of(each)).address for each in fresh}}

    def value(argument: int | ArraySpec) -> int:
        return addresses[argument.name] if isinstance(argument, ArraySpec) else argument

    def number(argument: Argument) -> int | float:
        if isinstance(argument, ListArgument):
            return memory.allocate_list([[value(entry) for entry in row] for row in argument.rows]).address
        return argument if isinstance(argument, float) else value(argument)

    return tuple(number(argument) for argument in arguments)


class Launcher:
    """Makes the launches of one task runnable."""

    def __init__(self, task: Task, board: Board) -> None:
        self.task, self.board = task, board

    def runnable(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Runnable | Failed:
        """Returns the launch of ``configuration`` on ``arrays``, or `Failed` if it cannot be made, lowered or read."""
        try:
            launch = self.task.launched(configuration, dims, arrays, self.board)
        except Exception as error:
            return Failed("launch", str(error) if isinstance(error, TaskError) else in_task(error))
        language = language_of(launch.kernel)
        hints = hints_of(self.task, configuration)
        lowered = language.tile_ir_of(launch, hints, configuration, self.board.arch)
        if isinstance(lowered, Failed):
            return lowered
        try:
            read = read_bytecode(lowered.code)
        except ToolFailed as error:
            return Failed("tool", f"its Tile IR cannot be read: {error}")
        return Runnable(launch, read, language.arguments(launch), lowered.code, language.stand_in(hints))
