"""Translates TTIR to Tile IR bytecode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ToolFailed
from tilewright.languages.cutile.toolchain import find_tileiras
from tilewright.languages.tileir_from_triton import (
    casts,
    control,
    debugging,
    descriptors,
    elementwise,
    functions,
    memory,
    products,
    reductions,
    shapes,
)
from tilewright.languages.tileir_from_triton.aliasing import Aliases
from tilewright.languages.tileir_from_triton.axes import Axes
from tilewright.languages.tileir_from_triton.generic import generic_text
from tilewright.languages.tileir_from_triton.reader import read_ttir
from tilewright.languages.tileir_from_triton.tokens import MemoryTokens
from tilewright.languages.tileir_from_triton.touched import kernels_of
from tilewright.languages.tileir_from_triton.translation import HANDLERS, Translation
from tilewright.languages.tileir_from_triton.ttir import SsaValue, TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import VERSIONS, Handle, Writer

FAMILIES = (
    casts, control, debugging, descriptors, elementwise, functions, memory, products, reductions, shapes,
)  # fmt: skip
"""The modules of the families of operations. Importing them registers their handlers."""


@dataclass(frozen=True)
class Bytecode:
    """A kernel as Tile IR bytecode."""

    symbol: str
    code: bytes


def translate(
    ttir: str,
    arch: str,
    hints: Mapping[str, int | None] | None = None,
    *,
    arrays: Sequence[int] | None = None,
    nan_padded: Collection[int] = (),
    even_rows: Collection[int] = (),
    checks_promises: bool = False,
    version: tuple[int, int] | None = None,
) -> Bytecode:
    """Translates a kernel.

    hints: ``occupancy``, ``num_ctas``, ``num_worker_warps``, and ``num_stages``, which becomes the latency of loads and
        stores. ``num_warps`` and other hints have no effect: Tile IR's compiler chooses.
    arrays: an id for each parameter of the kernel. Pointers with different ids share no memory. By default all may
        share memory.
    nan_padded: the positions of the parameters that are tensor descriptors with NaN outside the tensor. TTIR does not
        contain this fact.
    even_rows: the positions of the descriptors whose last extent is a multiple of 16 bytes. TTIR does not contain this
        fact.
    checks_promises: whether the code checks each `tl.assume` and `tl.multiple_of`, for the interpreter. Triton's
        compiler relies on all of them. Tile IR's compiler gets only the promises about the alignment of an access.
    version: the version of the bytecode. The default is the newest that the installed compiler reads.

    A tensor descriptor among the parameters becomes the address of its tensor. Raises Untranslated, which names the
    operation and its source line, and ToolFailed if the release of Triton or cuda-tile is not supported.
    """
    function = entry_of(read_ttir(generic_text(ttir)))
    given = dict(hints or {})
    writer = Writer(arch, version or newest_version(find_tileiras().version))
    writer.latency = control.latency_of(given.pop("num_stages", None))
    blocks, name = function.regions[0], str(function.attributes["sym_name"])
    parameters = blocks[0].arguments
    with writer.entry(name, [_passed(one.type) for one in parameters], function.place, given) as handles:
        t = Translation(writer, checks_promises)
        t.axes = Axes(function)
        t.tokens = MemoryTokens(writer, Aliases(function, arrays))
        attributes = function.attributes.get("arg_attrs") or [{}] * len(parameters)
        for parameter, handle, said in zip(parameters, handles, attributes, strict=True):
            t[parameter] = _bound(t, parameter, handle, said)
        for at, parameter in enumerate(parameters):
            if parameter.type.descriptor:
                padding = "Nan" if at in nan_padded else "Zero"
                t[parameter] = descriptors.from_host(t, parameter.type, handles[at:], padding, at in even_rows)
        control.write_body(t, blocks)
    return Bytecode(name, bytes(writer.code))


def newest_version(compiler: tuple[int, int]) -> tuple[int, int]:
    """Returns the newest bytecode version that a compiler of version ``compiler`` reads. Raises ToolFailed if there is
    none."""
    for version in VERSIONS:
        if version <= compiler:
            return version
    raise ToolFailed(
        f"Triton on Tile IR needs tileiras {VERSIONS[-1][0]}.{VERSIONS[-1][1]} or newer, not "
        f"{compiler[0]}.{compiler[1]}; fix: pip install --upgrade 'cuda-tile[tileiras]'"
    )


def entry_of(module: TtirOp) -> TtirOp:
    """Returns the kernel of a module. Raises Untranslated if the kernel calls functions that Triton did not inline."""
    public = kernels_of(module)
    if len(public) != 1:
        raise Untranslated(f"a module with {len(public)} kernels")
    for op in public[0].walk():
        if op.name == "tt.call":
            raise Untranslated(f"a call of {op.attributes['callee']}, which is not inlined", op)
        if op.name not in HANDLERS and op.name not in TERMINATORS and op is not public[0]:
            raise Untranslated.lacking(op)
    return public[0]


TERMINATORS = frozenset({
    "tt.return", "scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "cf.br", "cf.cond_br",
})  # fmt: skip


def _passed(kind: ValueType) -> ValueType:
    """Returns the type of a parameter in the bytecode."""
    return ValueType(kind.element, pointer=True) if kind.descriptor else kind


def _bound(t: Translation, parameter: SsaValue, handle: Handle, said: Mapping[str, int]) -> Handle:
    """Returns the value of a parameter, with an `assume` of the divisibility that the signature promises."""
    divisor = int(said.get("tt.divisibility", 1))
    if divisor == 1 or parameter.type.descriptor:
        return handle
    return t.writer.assume(handle, parameter.type, divisor, None, None)
