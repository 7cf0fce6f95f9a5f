"""The Tile IR route: TTIR is translated to Tile IR bytecode, which cuTile's compiler compiles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from tilewright.errors import ToolFailed
from tilewright.hardware.architectures import architecture
from tilewright.languages.base import Hints, Lowered
from tilewright.languages.cutile.toolchain import find_tileiras
from tilewright.languages.triton.front_end import Ttir, ttir_of
from tilewright.languages.triton.hints import PTX, ROUTE
from tilewright.records import Configuration, Failed, Value
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec, Descriptor

if TYPE_CHECKING:
    from tilewright.languages.tileir_from_triton.translate import Bytecode

HINTS = ("occupancy", "num_ctas", "num_worker_warps", "num_stages")
"""The hints that have an effect on this route. ``num_stages`` becomes the latency of loads and stores."""
WITH_DESCRIPTORS = "sm_90"
"""The first architecture for which Triton keeps tensor descriptors in TTIR. Tile IR has them on every architecture."""
TRANSLATED = 256
"""Most translations in the cache. A check lowers one launch hundreds of times."""


def lowered(
    launch: Launch, hints: Hints, config: Configuration, arch: str, *, of_ptx: bool = False
) -> Lowered | Failed:
    """Returns the launch as Tile IR. If it cannot be translated, the `Failed` names the operation and its source line.

    of_ptx: True if the Tile IR replaces code of Triton's compiler for the interpreter. Then the kernel sees its own
        ``num_warps``, and the interpreter checks all promises of the kernel to that compiler.
    """
    from tilewright.languages.tileir_from_triton.ttir import Untranslated

    keeps = architecture(arch).number >= architecture(WITH_DESCRIPTORS).number
    made = ttir_of(launch, hints if of_ptx else {}, config, arch if keeps else WITH_DESCRIPTORS)
    if isinstance(made, Failed):
        return made
    given = tuple((name, value) for name in HINTS if isinstance(value := hints.get(name), int))
    arrays, nan_padded = tuple(_arrays(made, launch.in_place)), tuple(_nan_padded(made))
    try:
        code = _translated(made.text, arch, given, arrays, nan_padded, of_ptx, find_tileiras().version)
    except Untranslated as error:
        fix = "check it on a GPU" if of_ptx else f"{ROUTE.name}={PTX} compiles it"
        return Failed("front end", f"not translated to Tile IR: {error}; fix: {fix}")
    except ToolFailed as error:
        return Failed("tool", str(error))
    return Lowered(config, arch, code.symbol, code.code)


@lru_cache(TRANSLATED)
def _translated(
    ttir: str, arch: str, hints: tuple[tuple[str, int], ...], arrays: tuple[int, ...], nan_padded: tuple[int, ...],
    checks_promises: bool, compiler: tuple[int, int],
) -> Bytecode:  # fmt: skip
    from tilewright.languages.tileir_from_triton.translate import newest_version, translate

    version = newest_version(compiler)
    return translate(
        ttir, arch, dict(hints), arrays=arrays, nan_padded=nan_padded, checks_promises=checks_promises, version=version
    )


def _nan_padded(made: Ttir) -> list[int]:
    """Returns the positions of the entry's parameters that are tensor descriptors with NaN outside the tensor."""
    found, at = [], 0
    for parameter in made.parameters:
        if isinstance(parameter.argument, Descriptor) and parameter.argument.padding == "nan":
            found.append(at)
        at += len(parameter.arguments)
    return found


def _arrays(made: Ttir, in_place: Mapping[str, str]) -> list[int]:
    """Returns a number for each parameter. Two tensors may share memory only if they have the same number.

    Tensors with the same name have the same number. So have an output and its input in ``in_place``.

    in_place: output → the input whose memory the output may share.
    """
    numbers: dict[Value, int] = {}
    names = (argument.name if isinstance(argument, ArraySpec) else None for argument in made.arguments)
    return [numbers.setdefault(in_place.get(name or "", name), len(numbers)) for name in names]
