"""The Triton language. The front end runs in this process, the compiler in a long-lived child process.

Compiling needs neither torch nor a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tilewright.errors import CompilerMissing, ToolFailed
from tilewright.hardware.machine import installed_version
from tilewright.languages import cubins
from tilewright.languages.base import Argument, Hints, Language, Lowered, Waits
from tilewright.languages.cutile import LANGUAGE as CUTILE
from tilewright.languages.cutile.toolchain import compiler
from tilewright.languages.triton import ptx, tile_ir
from tilewright.languages.triton.front_end import parameters_of, private_parts, ttir_of
from tilewright.languages.triton.hints import HINTS, PTX, ROUTE, TILE_IR, on_tile_ir
from tilewright.languages.triton.kernels import OPTIONS, is_triton, jit_function
from tilewright.languages.triton.versions import untested
from tilewright.records import Built, Configuration, Failed
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

PTX_SECONDS = 60.0
"""Processor time for a compilation whose PTX a check reads."""


class Triton(Language):
    name = "triton"
    hints = HINTS
    launched_by_driver = True

    def recognises(self, kernel: Any) -> bool:
        return is_triton(kernel)

    def kernel_name(self, kernel: Any) -> str:
        return str(jit_function(kernel).__name__)

    def entry_name(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> str:
        return self.kernel_name(launch.kernel)

    def lower(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        if on_tile_ir(hints):
            return tile_ir.lowered(launch, hints, config, arch)
        made = ttir_of(launch, hints, config, arch)
        return made if isinstance(made, Failed) else ptx.lowered(made, config, arch)

    def tile_ir_of(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        of_ptx = not on_tile_ir(hints)
        made = tile_ir.lowered(launch, hints, config, arch, of_ptx=of_ptx)
        if isinstance(made, Failed) and of_ptx and isinstance(self.lower(launch, hints, config, arch), Lowered):
            return Failed("tool", f"its TTIR cannot be run on a CPU: {made.reason}")
        return made

    def stand_in(self, hints: Hints) -> str:
        return "" if on_tile_ir(hints) else "its TTIR, through Tile IR"

    def waits(self, lowered: Lowered) -> Waits | None:
        if lowered.is_tile_ir:
            return None
        waits = ptx.waits_of(lowered, PTX_SECONDS)
        return None if isinstance(waits, Failed) else waits

    def ignored(self, hints: Hints) -> Mapping[str, str]:
        route, used = (TILE_IR, tile_ir.HINTS) if on_tile_ir(hints) else (PTX, OPTIONS)
        given = [name for name, value in hints.items() if value is not None and name not in (ROUTE.name, *used)]
        return dict.fromkeys(given, f"{ROUTE.name}={route}")

    def arguments(self, launch: Launch) -> tuple[Argument, ...]:
        return tuple(argument for parameter in parameters_of(launch) for argument in parameter.arguments)

    def constant_parameters(self, kernel: Any) -> tuple[bool, ...]:
        return tuple(parameter.is_constexpr for parameter in jit_function(kernel).params)

    def touched(self, lowered: Lowered, arguments: Sequence[Argument]) -> tuple[frozenset[str], frozenset[str]] | None:
        from tilewright.languages.tileir_from_triton.touched import touched_parameters

        try:
            read, written = touched_parameters(lowered.code.decode(), len(arguments))
        except ToolFailed:
            return None
        names = {at: argument.name for at, argument in enumerate(arguments) if isinstance(argument, ArraySpec)}
        return frozenset(names[at] for at in read & names.keys()), frozenset(names[at] for at in written & names.keys())

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        built = CUTILE.assemble(lowered, seconds) if lowered.is_tile_ir else ptx.assembled(lowered, seconds)
        return built if isinstance(built, Failed) else replace(built, cache_key=cubins.key_of(lowered, self.name))

    def remember(self, built: Sequence[Built]) -> int:
        return cubins.store(built)

    def found(self, lowered: Lowered) -> Built | None:
        return cubins.stored(lowered, self.name)

    def expect(self, source: str) -> None:
        if "triton" in source and (PTX in source or TILE_IR not in source):
            ptx.begin()

    def toolkit(self) -> str:
        return f"triton {installed_version('triton')}, {compiler()}"

    def load_front_end(self) -> None:
        if "triton" in sys.modules:  # otherwise no task of this process uses triton
            private_parts()

    def keep_torch_out(self) -> None:
        if "triton" in sys.modules:
            with suppress(CompilerMissing):  # the error is raised again when a kernel is compiled
                private_parts().keep_torch_out()

    def caution(self) -> str | None:
        version = installed_version("triton") if "triton" in sys.modules else None
        return untested(version) if version else None
