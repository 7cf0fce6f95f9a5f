"""A small kernel with which `doctor` probes the tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.languages.base import Lowered
    from tilewright.records import Failed

PROBE_ARCH = "sm_90"


def compile_probe() -> tuple[int] | str:
    """Compiles a small kernel. Returns its number of registers, or the reason why compiling failed."""
    from tilewright.languages.cutile.cutile import CuTile
    from tilewright.machine_code import cubin as machine_code
    from tilewright.records import Failed

    lowered = lowered_probe()
    if isinstance(lowered, Failed):
        return lowered.reason
    built = CuTile().assemble(lowered, 60.0)
    return built.reason if isinstance(built, Failed) else (machine_code.read(built.cubin).registers,)


def lowered_probe() -> Lowered | Failed:
    """Returns a small kernel in Tile IR."""
    import cuda.tile as ct

    from tilewright.languages.cutile.cutile import CuTile
    from tilewright.records import Configuration
    from tilewright.task.task import Launch
    from tilewright.task.tensors import ArraySpec

    @ct.kernel
    def twice(x, y):  # type: ignore[no-untyped-def]
        block = ct.bid(0)
        ct.store(y, (block,), ct.load(x, (block,), (256,)) * 2)

    launch = Launch(twice, (4,), (ArraySpec("x", (1024,), "float32"), ArraySpec("y", (1024,), "float32")))
    return CuTile().lower(launch, {}, Configuration.of({}), PROBE_ARCH)
