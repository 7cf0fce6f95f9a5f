"""What a kernel language offers: it recognises a kernel, lowers it, and assembles it. The rest has defaults.

`lower` runs in the parent process and is quick (the language's own front end); `assemble` starts the compiler as a
child process and may run in many threads at once; `runner` is the only part that touches a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.errors import MachineError
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec


@dataclass(frozen=True)
class Lowered:
    """A configuration after the front end: what the compiler gets."""

    configuration: Configuration
    arch: str
    symbol: str
    """Name of the kernel's entry in the machine code."""
    code: bytes
    opt_level: int = 3

    @property
    def identity(self) -> tuple[str, int, bytes]:
        """Equal identity, equal cubin: compiled once."""
        return (self.arch, self.opt_level, self.code)


@dataclass(frozen=True)
class ListArgument:
    """How a list of arrays reaches a kernel: 64-bit numbers, row by row, in memory that the launch fills first. An
    `ArraySpec` is the address of the array with its name."""

    rows: tuple[tuple[int | ArraySpec, ...], ...]


Argument: TypeAlias = int | float | ArraySpec | ListArgument
"""What a compiled entry is called with: a number, or an array or list, of which it gets the address."""


class Language(ABC):
    """One kernel language. Its folder or entry point binds ``LANGUAGE`` to an instance.

    `recognises`, `lower` and `assemble` must be written. An error in one candidate is returned as a `Failed` with a
    stage and one line; a compiler that is not installed is raised as `CompilerMissing`.
    """

    name: str
    """As messages say it."""
    tile_ir = False
    """Whether `Lowered.code` is Tile IR bytecode. Only that can be interpreted, and its work counted."""

    @abstractmethod
    def recognises(self, kernel: Any) -> bool:
        """Whether a launch's kernel is written in this language."""

    @abstractmethod
    def lower(
        self, launch: Launch, hints: Mapping[str, int | None], config: Configuration, arch: str
    ) -> Lowered | Failed:
        """The language's own front end. Arrays are `ArraySpec`s where there is no device; the code must specialise on
        them as a launch on arrays of those shapes, strides and alignment would."""

    @abstractmethod
    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        """Compiles in a child process within ``seconds`` of wall time; a crash or a time-out is a `Failed`."""

    def kernel_name(self, kernel: Any) -> str:
        """What the name of the compiled kernel begins with, for every architecture and configuration."""
        return str(getattr(kernel, "__name__", ""))

    def arguments(self, launch: Launch) -> tuple[Argument, ...]:
        """What the compiled entry is called with. Default: the launch's own arguments, an address for each array."""
        return launch.args

    def remember(self, built: Sequence[Built]) -> int:
        """Puts cubins where the language's own launch will find them; how many were put. Default: nowhere."""
        return 0

    def runner(self, launch: Launch, hints: Mapping[str, int | None]) -> Callable[[int | None], None]:
        """A function that launches once on a CUDA stream, given its handle. Default: raises MachineError, so that
        kernels of this language are compiled, inspected and predicted, but never run."""
        raise MachineError(f"language '{self.name}' does not say how to launch a kernel: add a `runner` method to it")

    def warm_up(self) -> None:  # noqa: B027  (doing nothing is the default)
        """Does what the first launch in a process does besides its kernel. Default: nothing."""

    def keep_torch_out(self) -> None:  # noqa: B027
        """Loads the front end without torch, where it would import it; the process must not launch.
        Default: nothing."""
