"""From a launch of any front end to Tile IR that can run: lower it, read it, and bind its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compile.compile import hints_of
from tilewright.errors import TaskError, in_one_line
from tilewright.hardware.architectures import Board
from tilewright.languages import language_of
from tilewright.languages.base import Argument, ListArgument
from tilewright.records import Configuration, Failed
from tilewright.task.task import Launch, Task
from tilewright.task.tensors import ArraySpec, Dims
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.scanner import ReadError
from tilewright.tileir.read.tree import TileModule
from tilewright.tileir.run.interpreter import Executed, run
from tilewright.tileir.run.memory import Memory
from tilewright.tileir.watch.allocations import Allocation


@dataclass(frozen=True)
class Runnable:
    """A launch whose kernel is Tile IR."""

    launch: Launch
    module: TileModule
    arguments: tuple[Argument, ...]
    """In the order of the entry's parameters."""
    code: bytes

    def bound(self, addresses: Mapping[str, int], memory: Memory) -> tuple[int | float, ...]:
        """The arguments with an address for each array; see the function of this name."""
        return bound(self.arguments, addresses, memory)

    def dry_run(
        self, arrays: Mapping[str, ArraySpec], *, sample: int | None = None, seed: int | None = 0
    ) -> tuple[Executed, tuple[Allocation, ...]]:
        """Follows addresses and control flow without data, and says where the tensors lay. Their memory is never
        touched, so the system never provides it. Raises as `interpreter.run` does."""
        memory = Memory(watch=False)
        placed = {name: memory.allocate(name, np.empty(one.nbytes, np.uint8)) for name, one in arrays.items()}
        arguments = self.bound({name: one.address for name, one in placed.items()}, memory)
        grid = self.launch.grid
        done = run(self.module, arguments, grid, memory, dry=True, sample=sample, seed=seed)
        return done, (*placed.values(), *memory.lists)


def bound(arguments: Sequence[Argument], addresses: Mapping[str, int], memory: Memory) -> tuple[int | float, ...]:
    """``arguments`` of a `Runnable` with an address for each array; the rows of lists are put into ``memory``."""

    def value(argument: int | ArraySpec) -> int:
        return addresses[argument.name] if isinstance(argument, ArraySpec) else argument

    def number(argument: Argument) -> int | float:
        if isinstance(argument, ListArgument):
            return memory.allocate_list([[value(entry) for entry in row] for row in argument.rows]).address
        return argument if isinstance(argument, float) else value(argument)

    return tuple(number(argument) for argument in arguments)


class Launcher:
    """Makes the launches of one task runnable; equal bytecode is read once."""

    def __init__(self, task: Task, board: Board) -> None:
        self.task, self.board = task, board
        self._read: dict[bytes, TileModule] = {}

    def runnable(self, configuration: Configuration, dims: Dims, arrays: Mapping[str, ArraySpec]) -> Runnable | Failed:
        """The launch of ``configuration`` on ``arrays``. What goes wrong before the kernel runs is a `Failed`."""
        try:
            launch = self.task.launched(configuration, dims, arrays, self.board)
        except Exception as error:
            return Failed("launch", str(error) if isinstance(error, TaskError) else in_one_line(error))
        language = language_of(launch.kernel)
        if not language.tile_ir:
            return Failed("front end", f"the interpreter reads Tile IR, and language '{language.name}' writes none")
        lowered = language.lower(launch, hints_of(self.task, configuration), configuration, self.board.arch)
        if isinstance(lowered, Failed):
            return lowered
        try:
            if lowered.code not in self._read:
                self._read[lowered.code] = read_bytecode(lowered.code)
        except ReadError as error:
            return Failed("front end", str(error))
        return Runnable(launch, self._read[lowered.code], language.arguments(launch), lowered.code)
