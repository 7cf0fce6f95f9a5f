"""The Tile IR route: TTIR is translated to Tile IR bytecode, which cuTile's compiler compiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from tilewright.task.tensors import ITEM_BYTES, ArraySpec, Descriptor

if TYPE_CHECKING:
    from tilewright.languages.tileir_from_triton.translate import Bytecode

HINTS = ("occupancy", "num_ctas", "num_worker_warps", "num_stages")
"""The hints that have an effect on this route. ``num_stages`` becomes the latency of loads and stores."""
WITH_DESCRIPTORS = "sm_90"
"""The first architecture for which Triton keeps tensor descriptors in TTIR. Tile IR has them on every architecture."""
EVEN_BYTES = 16
"""The compiler of toolkit 13.5 stores by TMA only if it knows that the rows are multiples of this number of bytes."""
TRANSLATED = 256
"""Most translations in the cache. A check lowers one launch hundreds of times."""


def lowered(
    launch: Launch, hints: Hints, config: Configuration, arch: str, *, of_ptx: bool = False
) -> Lowered | Failed:
    """Returns the launch as Tile IR. If it cannot be translated, the `Failed` names the operation and its source line.

    of_ptx: True if the candidate is compiled through PTX, and the Tile IR is made only for a check in the interpreter.
        Then the kernel sees its own ``num_warps``, and the interpreter checks all promises that the kernel makes to
        Triton's compiler.
    """
    from tilewright.languages.tileir_from_triton.ttir import Untranslated

    keeps = architecture(arch).number >= architecture(WITH_DESCRIPTORS).number
    made = ttir_of(launch, hints if of_ptx else {}, config, arch if keeps else WITH_DESCRIPTORS)
    if isinstance(made, Failed):
        return made
    given = tuple((name, value) for name in HINTS if isinstance(value := hints.get(name), int))
    arrays, descriptors = tuple(_arrays(made, launch.in_place)), tuple(_descriptors(made))
    try:
        code = _translated(made.text, arch, given, arrays, descriptors, of_ptx, find_tileiras().version)
    except Untranslated as error:
        fix = "check it on a GPU" if of_ptx else f"{ROUTE.name}={PTX} compiles it"
        return Failed("front end", f"not translated to Tile IR: {error}; fix: {fix}")
    except ToolFailed as error:
        return Failed("tool", str(error))
    return Lowered(config, arch, code.symbol, code.code)


@lru_cache(TRANSLATED)
def _translated(
    ttir: str, arch: str, hints: tuple[tuple[str, int], ...], arrays: tuple[int, ...],
    descriptors: tuple[tuple[int, bool, bool], ...], checks_promises: bool, compiler: tuple[int, int],
) -> Bytecode:  # fmt: skip
    from tilewright.languages.tileir_from_triton.translate import newest_version, translate

    version = newest_version(compiler)
    return translate(
        ttir, arch, dict(hints), arrays=arrays, nan_padded=[at for at, nan, _ in descriptors if nan],
        even_rows=[at for at, _, even in descriptors if even], checks_promises=checks_promises, version=version,
    )  # fmt: skip


def _descriptors(made: Ttir) -> Iterator[tuple[int, bool, bool]]:
    """Yields (position, nan, even) for each parameter of the entry that is a tensor descriptor.

    nan: whether elements outside the tensor are NaN. even: whether the tensor's last extent is a multiple of 16 bytes.
    """
    at = 0
    for parameter in made.parameters:
        if isinstance(descriptor := parameter.argument, Descriptor):
            row = descriptor.base.shape[-1] * ITEM_BYTES[descriptor.base.dtype]
            yield at, descriptor.padding == "nan", row % EVEN_BYTES == 0
        at += len(parameter.arguments)


def _arrays(made: Ttir, in_place: Mapping[str, str]) -> list[int]:
    """Returns an id for each parameter. Two tensors may share memory only if they have the same id.

    Tensors with the same name have the same id. An output and its input in ``in_place`` have the same id, too.

    in_place: maps an output to the input whose memory the output may share.
    """
    numbers: dict[Value, int] = {}
    names = (argument.name if isinstance(argument, ArraySpec) else None for argument in made.arguments)
    return [numbers.setdefault(in_place.get(name or "", name), len(numbers)) for name in names]
