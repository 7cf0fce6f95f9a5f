"""A kernel that lives in another process, as data. To the rest of the package it is a kernel like any other.

The process that holds the kernel object runs its front end. This process gets the code, the arguments of the compiled
entry and what the kernel's decorator says, and compiles, interprets or launches that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.languages.base import Argument, Language, Lowered
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch


@dataclass(frozen=True, eq=False)
class DescribedKernel:
    """The kernel of one launch."""

    language: Language
    """Compiles the code that `code` gives."""
    name: str
    """What the name of the compiled kernel begins with."""
    arguments: tuple[Argument, ...]
    """What the compiled entry is called with."""
    hints: Mapping[str, int | None]
    """The compiler hints of its decorator; None where the compiler chooses."""
    constants: tuple[bool, ...]
    """For each parameter, whether it is a constant of the compiled code."""
    code: Callable[[Mapping[str, int | None]], Lowered | Failed] = field(repr=False)
    """Compiler hints → the code of this launch."""


class Described(Language):
    """Compiles the kernels that another process described."""

    def __init__(self, language: Language) -> None:
        self.language, self.name, self.tile_ir = language, language.name, language.tile_ir

    def recognises(self, kernel: Any) -> bool:
        return isinstance(kernel, DescribedKernel)

    def lower(
        self, launch: Launch, hints: Mapping[str, int | None], config: Configuration, arch: str
    ) -> Lowered | Failed:
        lowered = launch.kernel.code(hints)
        return lowered if isinstance(lowered, Failed) else replace(lowered, configuration=config)

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        return self.language.assemble(lowered, seconds)

    def kernel_name(self, kernel: DescribedKernel) -> str:
        return kernel.name

    def arguments(self, launch: Launch) -> tuple[Argument, ...]:
        arguments: tuple[Argument, ...] = launch.kernel.arguments
        return arguments

    def decorated_hints(self, kernel: DescribedKernel, arch: str) -> Mapping[str, int | None]:
        return kernel.hints

    def constant_parameters(self, kernel: DescribedKernel) -> tuple[bool, ...]:
        return kernel.constants

    def remember(self, built: Sequence[Built]) -> int:
        return self.language.remember(built)
