"""The CuTe DSL language. Tracing runs in this process, the compiler in forks of a long-lived process.

The package's own `cute.compile` does both in one process and at once. Its public parts `to_precompiled_mlir` and
`cutlass.compiler` do one of the two. The object that the compiler makes holds the host code, which makes the tensor
maps and launches the cubin. So a process with a GPU launches it without compiling again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.errors import CompilerMissing, MachineError, NoGpu, first_line
from tilewright.hardware.gpu import detect
from tilewright.hardware.machine import installed_version
from tilewright.languages import cubins
from tilewright.languages.base import Argument, Hints, Language, Lowered
from tilewright.languages.cutedsl import child as child_process
from tilewright.languages.cutedsl.tracing import Traced, host_function, traced
from tilewright.languages.cutedsl.versions import FIX, PACKAGE, untested
from tilewright.languages.resident_compiler import compiled_files, unexplained
from tilewright.records import Built, Configuration, Failed, LaunchFacts
from tilewright.space.knobs import Hint
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec
from tilewright.tools import child
from tilewright.tools.resident import Resident

ON_A_GPU = "CuTe DSL kernels run on a GPU only (they have no Tile IR)"
COMPILER = "CuTe DSL's compiler"
"""The name of the process in messages."""
OPT_LEVEL, MAXNREG = "opt_level", "maxnreg"
HIGHEST = 3
"""The optimization level that `cute.compile` chooses."""
SECONDS = 60.0
"""Processor time of a compilation in the process that launches. Usually the object is stored already."""
OBJECT = "object"
"""The ending of the compiled host code in `Built.files`."""
ARCHITECTURES = {
    **{name: name for name in ("sm_80", "sm_86", "sm_87", "sm_89")},
    **{name: f"{name}a" for name in ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121")},
}
"""The compiler's name of each architecture for which it compiles. The letter stands for the instructions that only this
architecture has."""


class CuteDsl(Language):
    name = "cutedsl"
    on_gpu_only = True
    hints = (
        Hint(OPT_LEVEL, (None, 0, 1, 2, 3), "0 to 3", "listed"),
        Hint(MAXNREG, (None, *range(24, 256, 8), 255), "a multiple of 8 from 24 to 248, or 255", "listed"),
    )

    def recognises(self, kernel: Any) -> bool:
        return host_function(kernel) is not None

    def kernel_name(self, kernel: Any) -> str:
        return "kernel_cutlass_"

    def entry_name(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> str:
        made = self._traced(launch, arch)
        return made.symbol if isinstance(made, Traced) else ""

    def _traced(self, launch: Launch, arch: str) -> Traced | Failed:
        if arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            return Failed("front end", f"CuTe DSL does not compile for {arch}; known: {known}")
        return traced(launch.kernel, _specifications(launch.args), ARCHITECTURES[arch])

    def lower(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        made = self._traced(launch, arch)
        if isinstance(made, Failed):
            return made
        if problem := _grid_problem(launch.grid, made):
            return Failed("launch", problem)
        level, registers = hints.get(OPT_LEVEL), hints.get(MAXNREG)
        options = (
            (OPT_LEVEL, HIGHEST if level is None else level), (MAXNREG, registers), ("threads", made.threads),
            ("cluster", made.cluster[0] * made.cluster[1] * made.cluster[2]),
        )  # fmt: skip
        return Lowered(config, arch, made.symbol, made.code, options)

    def tile_ir_of(self, launch: Launch, hints: Hints, config: Configuration, arch: str) -> Lowered | Failed:
        made = self.lower(launch, hints, config, arch)
        return made if isinstance(made, Failed) else Failed("tool", ON_A_GPU)

    def arguments(self, launch: Launch) -> tuple[Argument, ...]:
        args = (arg for arg in launch.args if isinstance(arg, int | float | ArraySpec))
        return tuple(args)

    def assemble(self, lowered: Lowered, seconds: float) -> Built | Failed:
        options = dict(lowered.options)
        job = {"arch": ARCHITECTURES[lowered.arch], OPT_LEVEL: options[OPT_LEVEL],
               MAXNREG: options[MAXNREG]}  # fmt: skip
        made = compiled_files(_process(), "mlir", lowered.code, job, seconds, _failure)
        if isinstance(made, Failed):
            return made
        shared = json.loads(made.files["json"])["shared"]
        facts = LaunchFacts(int(str(options["threads"])), int(str(options["cluster"])), shared)
        built = Built(
            lowered.configuration, lowered.arch, made.files["cubin"], lowered.symbol, made.seconds, facts=facts
        )
        return replace(built, files={OBJECT: made.files[OBJECT]}, cache_key=cubins.key_of(lowered, PACKAGE))

    def remember(self, built: Sequence[Built]) -> int:
        return cubins.store(built)

    def found(self, lowered: Lowered) -> Built | None:
        return cubins.stored(lowered, PACKAGE)

    def runner(self, launch: Launch, hints: Hints) -> Callable[[int | None], None]:
        from tilewright.languages.cutedsl.launching import HostCode, runtime_libraries

        if (gpu := detect()) is None:
            raise NoGpu(f"{ON_A_GPU}, and this machine has none")
        lowered = self.lower(launch, hints, Configuration.of({}), gpu.arch)
        built = lowered if isinstance(lowered, Failed) else self.found(lowered) or self.assemble(lowered, SECONDS)
        if isinstance(built, Failed):
            raise MachineError(f"{built.stage}: {built.reason}")
        return HostCode(built.files[OBJECT], runtime_libraries()).bound(launch.args)

    def expect(self, source: str) -> None:
        if "cutlass" in source and find_spec("cutlass") is not None:
            _process().begin()

    def toolkit(self) -> str:
        return f"{PACKAGE} {installed_version(PACKAGE)}"

    def caution(self) -> str | None:
        version = installed_version(PACKAGE) if "cutlass" in sys.modules else None
        return untested(version) if version else None


def _specifications(args: Sequence[Any]) -> list[Any]:
    """Returns the arguments with the specifications of tensors on a device in place of the tensors."""
    return [_specification(arg) if hasattr(arg, "data_ptr") else arg for arg in args]


def _specification(tensor: Any) -> ArraySpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return ArraySpec("", tuple(tensor.shape), dtype, tuple(tensor.stride()), int(tensor.data_ptr()))


def _grid_problem(grid: tuple[int, ...], made: Traced) -> str | None:
    """Returns a message if the task's grid is not the grid of the host function; None if it is, or if the latter is not
    a constant. A grid counts clusters, as in all languages."""
    if made.grid is None:
        return None
    clusters = tuple(ctas // each for ctas, each in zip(made.grid, made.cluster, strict=True))
    if clusters == (*grid, 1, 1)[:3]:
        return None
    return (f"the task's grid is {(*grid, 1, 1)[:3]}, but the host function launches {made.grid} CTAs in clusters of "
            f"{made.cluster}; fix: grid={clusters}, which counts clusters")  # fmt: skip


def _failure(folder: Path, done: child.Finished) -> Failed:
    """Returns the failure of a compilation, with a reason in one line: the first error that the compiler printed, or
    the exception, or the way in which the process ended."""
    for line in (done.stderr + done.stdout).splitlines():
        _, found, said = line.partition("error: ")
        if found and said.strip():
            return Failed("compile", said.strip())
    if (folder / "failed").exists():
        return Failed("compile", first_line((folder / "failed").read_text()))
    return unexplained(done, COMPILER)


@cache
def _process() -> Resident:
    spec, package = find_spec("cutlass"), find_spec("nvidia_cutlass_dsl")
    if spec is None or spec.origin is None:
        raise CompilerMissing(f"{PACKAGE} is not installed: {FIX}")
    places = [Path(spec.origin).parents[1]]
    if package is not None and package.submodule_search_locations:
        places.append(Path(next(iter(package.submodule_search_locations))).parent)
    return Resident(Path(child_process.__file__), tuple(places), COMPILER, FIX)
