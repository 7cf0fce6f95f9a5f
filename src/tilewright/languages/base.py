"""What a kernel language must offer: recognise, lower, assemble, and launch.

`lower` runs in the parent process and is quick (the language's own front end); `assemble` starts
the compiler as a child process and may run in many threads at once; `runner` is the only part
that touches a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import ArraySpec, Launch


@dataclass(frozen=True)
class Lowered:
    """A configuration after the front end: what the compiler gets."""

    configuration: Configuration
    arch: str
    symbol: str
    code: bytes
    opt_level: int

    @property
    def identity(self) -> tuple[str, int, bytes]:
        """Equal identity, equal cubin: compiled once."""
        return (self.arch, self.opt_level, self.code)


@dataclass(frozen=True)
class Table:
    """Memory that a launch fills before its kernel runs, 64-bit numbers row by row: how a list of arrays
    reaches a kernel. An `ArraySpec` stands for the address of the array of its name."""

    rows: tuple[tuple[int | ArraySpec, ...], ...]


class Language(Protocol):
    name: str

    def owns(self, kernel: Any) -> bool: ...

    def kernel_name(self, kernel: Any) -> str:
        """What the name of the compiled kernel begins with, whatever it is compiled for."""
        ...

    def lower(
        self, launch: Launch, hints: Mapping[str, int | None], config: Configuration, arch: str
    ) -> Lowered | Failed: ...

    def arguments(self, launch: Launch) -> tuple[Any, ...]:
        """What the compiled entry is called with: numbers, and an `ArraySpec` or a `Table` for an address."""
        ...

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        """Compiles within ``seconds`` of wall time; a crash or a time-out is a `Failed`."""
        ...

    def remember(self, built: Sequence[Built]) -> int:
        """Puts cubins where the language's own launch will find them; how many were put."""
        ...

    def runner(self, launch: Launch, hints: Mapping[str, int | None]) -> Callable[[Any], None]:
        """A function of a CUDA stream that launches once."""
        ...

    def warm_up(self) -> None:
        """Does what the first launch in a process does besides its kernel."""
        ...

    def keep_torch_out(self) -> None:
        """Loads the front end without torch, where it would import it; the process must not launch."""
        ...
