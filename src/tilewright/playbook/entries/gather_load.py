"""Turns loads and stores of tiles into gathers and scatters: the reverse of `tile_load`.

A tile load by TMA goes through shared memory, which helps if the tile is shared or read again. A kernel that uses each
element once can move the elements directly between memory and registers. But then the kernel must compute an address
and a bound for each element.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read, reaching
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.tile_access import Converted, convertible, with_accesses, with_kept
from tilewright.playbook.analyses.tile_shapes import Shape, Shapes, tile_call, tuple_text
from tilewright.playbook.base import HINTS_OF_TILES, Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Expression, Source, argument, dotted, elements

EVERY, LOADS, STORES = "every access", "loads only", "stores only"
KINDS = {EVERY: ("load", "store"), LOADS: ("load",), STORES: ("store",)}
PRODUCTS = ("mma", "mma_scaled", "matmul")
PADDING = {"NEG_ZERO": "-0.0", "POS_INF": 'float("inf")', "NEG_INF": '-float("inf")', "NAN": 'float("nan")'}
"""Maps the padding mode of a tile load to the ``padding_value`` of a gather. The default of a gather is zero."""
KNOWN = ("index", "shape", "tile", "padding_mode", "check_bounds", "latency", "allow_tma")


class GatherLoad(Entry):
    about = EntryDescription(
        id="gather_load",
        name="gather and scatter",
        what="tile loads and stores as gathers and scatters, straight between memory and registers",
        when="each element is read or written once: elementwise kernels, inversions by scatter",
        when_not="tiles that feed a product of matrices, or are read again by other blocks",
        priority={"memory": 5, "balanced": 6},
        eases=("access path", "residency"),
        order=20,
        effect=Effect.assumed(0.8, 1.4, kept=1, of=4),
        together=HINTS_OF_TILES,
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for name, function in source.tile_code.items():
            possible = list(convertible(source, name, KINDS[EVERY], gathered))
            if not possible or source.calls(*PRODUCTS, inside=function):
                continue
            both = len({tile_call(source, access.call) for access in possible}) > 1
            arrays = [source.code(access.call.args[0].value) for access in possible]
            promise = 1 / max(map(arrays.count, arrays))  # 1 if no array is accessed twice
            values = (EVERY, STORES, LOADS) if both else (EVERY,)
            found.append(Site.at(source, function, f"{len(possible)} tile loads and stores", values, promise))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        site.function_here(source)
        if value not in KINDS:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {', '.join(KINDS)}")
        kinds = KINDS[str(value)]
        return with_accesses(source, site.kernel, lambda now: convertible(now, site.kernel, kinds, gathered))


def gathered(source: Source, call: cst.Call) -> Converted:
    """Returns the gather or scatter that replaces a tile access. Raises `NotApplicable` if there is none."""
    name = tile_call(source, call)
    if name not in ("load", "store"):
        raise NotApplicable(f"{source.code(call.func)} is neither a tile load nor a tile store")
    if unknown := [arg for arg in call.args if arg.keyword is not None and arg.keyword.value not in KNOWN]:
        raise NotApplicable(f"{source.code(unknown[0])} has no counterpart in a gather or scatter")
    array, index = argument(call, "array", 0), elements(argument(call, "index", 1))
    if array is None or index is None:
        raise NotApplicable(f"the index of {source.code(call)} is not written as a tuple")
    shapes, tile = Shapes(source, source.function_around(call)), argument(call, "tile", 2)
    shape = shapes.accessed(call)
    if shape is None:
        raise NotApplicable(f"the shape of {source.code(call if tile is None else tile)} is not known")
    if len(shape) != len(index):
        raise NotApplicable(f"{source.code(call)} has {len(index)} indices and a tile of {len(shape)} axes")
    indices = _indices(source, index, shape)
    arguments = [source.code(array), indices[0] if len(indices) == 1 else tuple_text(indices)]
    arguments += _padding(source, call) if name == "load" or tile is None else [source.code(tile)]
    function = source.spelled("gather" if name == "load" else "scatter")
    if not function:
        raise NotApplicable(f"{source.name} does not import gathers and scatters of cuda.tile")
    padding = argument(call, "padding_mode")
    read = names_read(padding) if padding is not None else set()
    return Converted(call, function, with_kept(source, call, arguments), "", False, frozenset(read))


def _indices(source: Source, index: Sequence[Expression], shape: Shape) -> list[str]:
    """Returns the index of a tile's elements along each axis: ``block * TILE + ct.arange(TILE, dtype=ct.int32)``."""
    arange, int32 = source.spelled("arange"), source.spelled("int32")
    if not arange or not int32:
        raise NotApplicable(f"{source.name} imports neither arange nor int32 of cuda.tile")
    if all(size == "1" for size in shape):
        raise NotApplicable("the access takes a single element")
    found = []
    for axis, (number, size) in enumerate(zip(index, shape, strict=True)):
        block = source.code(number)
        if size == "1":
            found.append(block)
            continue
        places = f"{arange}({size}, dtype={int32})"
        if len(shape) > 1:
            places += f"[{', '.join(':' if axis == other else 'None' for other in range(len(shape)))}]"
        by = size if size.isidentifier() or size.isdigit() else f"({size})"
        found.append(places if block == "0" else f"{text_of(source, number)} * {by} + {places}")
    return found


def _padding(source: Source, call: cst.Call) -> list[str]:
    """Returns the ``padding_value`` argument for a load's padding mode; empty if the default fits."""
    given = argument(call, "padding_mode")
    if isinstance(given, cst.Name) and (definition := reaching(source, given.value, call)) is not None:
        given = definition.value
    mode = "ZERO" if given is None else dotted(given).rpartition(".")[2]
    if given is not None and mode not in (*PADDING, "ZERO", "UNDETERMINED"):
        raise NotApplicable(f"padding {source.code(given)} is not understood")
    return [f"padding_value={PADDING[mode]}"] if mode in PADDING else []


ENTRY = GatherLoad()
