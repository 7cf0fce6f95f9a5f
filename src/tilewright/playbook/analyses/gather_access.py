"""Writes a load or store of a tile as a gather or scatter of its elements: the reverse of `tile_access`."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_read
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.reaching import reaching
from tilewright.playbook.analyses.tile_access import Converted, with_kept
from tilewright.playbook.analyses.tile_shapes import Shape, Shapes, tile_call, tuple_text
from tilewright.playbook.base import NotApplicable
from tilewright.source.syntax import Source, argument, dotted, elements

PADDING = {
    "UNDETERMINED": None,
    "ZERO": None,
    "NEG_ZERO": "-0.0",
    "POS_INF": 'float("inf")',
    "NEG_INF": '-float("inf")',
    "NAN": 'float("nan")',
}
"""Padding mode → ``padding_value`` of a gather, None for zero, its default."""
KNOWN = ("index", "shape", "tile", "padding_mode", "check_bounds", "latency", "allow_tma")


def gathered(source: Source, call: cst.Call) -> Converted:
    """The gather or scatter that does what a tile access does. Raises `NotApplicable` where there is none."""
    name = tile_call(source, call)
    if name not in ("load", "store"):
        raise NotApplicable(f"{source.code(call.func)} is neither a tile load nor a tile store")
    if unknown := [arg for arg in call.args if arg.keyword is not None and arg.keyword.value not in KNOWN]:
        raise NotApplicable(f"{source.code(unknown[0])} has no counterpart in a gather or scatter")
    array, index = argument(call, "array", 0), elements(argument(call, "index", 1))
    if array is None or index is None:
        raise NotApplicable(f"the index of {source.code(call)} is not written as a tuple")
    shape = _shape(source, call, name)
    if len(shape) != len(index):
        raise NotApplicable(f"{source.code(call)} has {len(index)} indices and a tile of {len(shape)} axes")
    indices = _indices(source, index, shape)
    given = indices[0] if len(indices) == 1 else tuple_text(indices)
    arguments = [source.code(array), given]
    tile = argument(call, "tile", 2)
    arguments += _padding(source, call) if name == "load" or tile is None else [source.code(tile)]
    function = source.spelled("gather" if name == "load" else "scatter")
    if not function:
        raise NotApplicable(f"{source.name} does not import gathers and scatters of cuda.tile")
    padding = argument(call, "padding_mode", None)
    read = names_read(padding) if padding is not None else set()
    return Converted(call, function, with_kept(source, call, arguments), "", False, frozenset(read))


def _shape(source: Source, call: cst.Call, name: str) -> Shape:
    shapes = Shapes(source, source.functions[source.function_of(call)])
    tile = argument(call, "tile", 2)
    shape = shapes.of(call) if name == "load" else None if tile is None else shapes.of(tile)
    if shape is None:
        raise NotApplicable(f"the shape of {source.code(call if tile is None else tile)} is not known")
    return shape


def _indices(source: Source, index: Sequence[cst.BaseExpression], shape: Shape) -> list[str]:
    arange, int32 = source.spelled("arange"), source.spelled("int32")
    if not arange or not int32:
        raise NotApplicable(f"{source.name} imports neither arange nor int32 of cuda.tile")
    if all(size == "1" for size in shape):
        raise NotApplicable("the access is of one element")
    found = []
    for axis, (one, size) in enumerate(zip(index, shape, strict=True)):
        block = source.code(one)
        if size == "1":
            found.append(block)
            continue
        places = f"{arange}({size}, dtype={int32})"
        if len(shape) > 1:
            places += f"[{', '.join(':' if axis == other else 'None' for other in range(len(shape)))}]"
        by = size if size.isidentifier() or size.isdigit() else f"({size})"
        found.append(places if block == "0" else f"{text_of(source, one)} * {by} + {places}")
    return found


def _padding(source: Source, call: cst.Call) -> list[str]:
    given = argument(call, "padding_mode", None)
    if isinstance(given, cst.Name):
        definition = reaching(source, given.value, call)
        given = definition.value if definition is not None else given
    mode = "UNDETERMINED" if given is None else dotted(given).rpartition(".")[2]
    if mode not in PADDING:
        raise NotApplicable(f"padding {source.code(given) if given is not None else ''} is not understood")
    value = PADDING[mode]
    return [] if value is None else [f"padding_value={value}"]
