"""Kernels of another process, as data. The rest of the package uses them like any other kernel.

The other process has the kernel object and runs the front end. This process gets the code, the arguments of the
compiled entry and the hints of the decorator, and compiles, interprets or launches the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.languages.base import Argument, Hints, Language, Lowered, Waits
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch


@dataclass(frozen=True, eq=False)
class DescribedKernel:
    """The data of a kernel of another process, for one launch."""

    language: Language
    """The language that compiles the kernel."""
    name: str
    """The start of the compiled kernel's name."""
    arguments: tuple[Argument, ...]
    """The arguments of the compiled entry."""
    hints: Hints
    """The compiler hints of the decorator."""
    constants: tuple[bool, ...]
    """For each parameter, whether it is a constant of the compiled code."""
    code: Callable[[Hints, bool], Lowered | Failed] = field(repr=False)
    """Returns the code of this launch. Its arguments: the compiler hints, and whether Tile IR is wanted."""


class Described(Language):
    """The language of the kernels that another process described. Passes the code on to the kernel's own language."""

    def __init__(self, language: Language) -> None:
        self.language, self.name, self.hints = language, language.name, language.hints

    def recognises(self, kernel: Any) -> bool:
        return isinstance(kernel, DescribedKernel)

    def lower(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        return _of(config, launch.kernel.code(hints, False))

    def tile_ir_of(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        return _of(config, launch.kernel.code(hints, True))

    def stand_in(self, hints: Hints) -> str:
        return self.language.stand_in(hints)

    def ignored(self, hints: Hints) -> Mapping[str, str]:
        return self.language.ignored(hints)

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        return self.language.assemble(lowered, seconds)

    def waits(self, lowered: Lowered) -> Waits | None:
        return self.language.waits(lowered)

    def kernel_name(self, kernel: DescribedKernel) -> str:
        return kernel.name

    def arguments(self, launch: Launch) -> tuple[Argument, ...]:
        arguments: tuple[Argument, ...] = launch.kernel.arguments
        return arguments

    def decorated_hints(self, kernel: DescribedKernel, arch: str) -> Hints:
        return kernel.hints

    def constant_parameters(self, kernel: DescribedKernel) -> tuple[bool, ...]:
        return kernel.constants

    def cache_key(self, lowered: Lowered) -> str | None:
        return self.language.cache_key(lowered)

    def remember(self, built: Sequence[Built]) -> int:
        return self.language.remember(built)


def _of(config: Configuration, lowered: Lowered | Failed) -> Lowered | Failed:
    return lowered if isinstance(lowered, Failed) else replace(lowered, configuration=config)
