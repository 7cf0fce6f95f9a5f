"""Reductions and scans with an arbitrary body."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.languages.tileir_from_triton.combining import neutral
from tilewright.languages.tileir_from_triton.translation import I32, Translation, translates
from tilewright.languages.tileir_from_triton.ttir import SsaValue, TtirBlock, TtirOp, Untranslated, ValueType
from tilewright.languages.tileir_from_triton.writer import Handle


@translates("tt.reduce")
def reduce(t: Translation, op: TtirOp) -> Sequence[Handle]:
    axis, block = int(op.attributes["axis"]), op.body()
    elements = [ValueType(one.type.element) for one in op.operands]
    identities = neutral(block, elements, t.numbers)
    if identities is None:
        return halved(t, op, axis, block)
    attributes = _identities(t, identities, elements)
    nested = t.emit("Reduce", [one.type for one in op.results], t.all(op.operands), axis, attributes)
    return _combined(t, nested, block, elements)


@translates("tt.scan")
def scan(t: Translation, op: TtirOp) -> Sequence[Handle]:
    axis, block, reverse = int(op.attributes["axis"]), op.body(), bool(op.attributes.get("reverse"))
    elements = [ValueType(one.type.element) for one in op.operands]
    identities = neutral(block, elements, t.numbers, as_first_only=True)
    if identities is None:
        raise Untranslated("a scan whose combination has no neutral element among 0, 1 and the extremes")
    attributes = _identities(t, identities, elements)
    nested = t.emit("Scan", [one.type for one in op.results], t.all(op.operands), axis, reverse, attributes)
    return _combined(t, nested, block, elements)


def _identities(t: Translation, values: Sequence[float], elements: Sequence[ValueType]) -> list[object]:
    return [t.writer.identity(value, kind) for value, kind in zip(values, elements, strict=True)]


def _combined(t: Translation, nested: object, block: TtirBlock, elements: Sequence[ValueType]) -> Sequence[Handle]:
    """Generates the body of a reduction or scan.

    In Triton, the arguments are first the left elements of all operands, then the right elements. In Tile IR, the left
    and the right element of each operand are adjacent.
    """
    count = len(elements)
    with t.writer.block(nested, [kind for kind in elements for _ in range(2)]) as arguments:
        t.bind(block.arguments, [*arguments[::2], *arguments[1::2]])
        t.emit("Yield", t.all(t.body(block).operands))
    results: Sequence[Handle] = nested.done()  # type: ignore[attr-defined]
    assert len(results) == count
    return results


@translates("tt.histogram")
def histogram(t: Translation, op: TtirOp) -> Handle:
    """Generates a histogram: compares each element with the number of each bin, and counts."""
    source, kind = op.operands[0], op.operands[0].type
    (size,), (bins,) = kind.shape, op.type.shape
    table = ValueType(kind.element, (size, bins))
    numbers = t.emit("Iota", kind.shaped(bins))
    left = t.emit("Broadcast", table, t.reshape(t[source], kind.shaped(size, 1)))
    flags = t.emit("CmpI", table.of("i1"), left, t.spread(numbers, kind.shaped(bins), (size, bins)), "EQUAL", "Signed")
    if len(op.operands) > 1:
        mask = t.reshape(t[op.operands[1]], ValueType("i1", (size, 1)))
        flags = t.emit("AndI", table.of("i1"), flags, t.emit("Broadcast", table.of("i1"), mask))
    ones = t.emit("ExtI", table.of(op.type.element), flags, "Unsigned")
    element = ValueType(op.type.element)
    nested = t.emit("Reduce", [op.type], [ones], 0, [t.writer.identity(0, element)])
    with t.writer.block(nested, [element, element]) as (a, b):
        t.emit("Yield", [t.add(a, b, element)])
    return nested.done()[0]


def halved(t: Translation, op: TtirOp, axis: int, block: TtirBlock) -> Sequence[Handle]:
    """Combines the first half of the tiles with the second half until one element is left.

    This needs no neutral element.
    """
    values, types = t.all(op.operands), [one.type for one in op.operands]
    while (extent := types[0].shape[axis]) > 1:
        shape = tuple(extent // 2 if at == axis else size for at, size in enumerate(types[0].shape))
        types = [kind.shaped(*shape) for kind in types]
        halves = [[_half(t, value, kind, axis, k) for value, kind in zip(values, types, strict=True)] for k in (0, 1)]
        on_tiles = widened_to(t, block, shape)
        t.bind(on_tiles.arguments, [*halves[0], *halves[1]])
        values = t.all(t.body(on_tiles).operands)
    return [t.reshape(value, one.type) for value, one in zip(values, op.results, strict=True)]


def _half(t: Translation, value: Handle, kind: ValueType, axis: int, which: int) -> Handle:
    zero = t.constant(0, I32)
    place = t.constant(1, I32) if which else zero
    return t.emit("Extract", kind, value, [place if at == axis else zero for at in range(len(kind.shape))])


def widened_to(t: Translation, block: TtirBlock, shape: tuple[int, ...]) -> TtirBlock:
    """Returns the body for tiles of ``shape`` instead of elements. Values from outside the body are broadcast."""
    new: dict[SsaValue, SsaValue] = {}
    inside = {*block.arguments, *(result for op in block.ops for result in op.results)}

    def tile(value: SsaValue) -> SsaValue:
        if value not in new:
            new[value] = SsaValue(value.name, value.type.shaped(*shape))
            if value not in inside:
                t[new[value]] = t.spread(t[value], value.type, shape)
        return new[value]

    ops = [
        TtirOp(op.name, tuple(map(tile, op.operands)), tuple(map(tile, op.results)), op.attributes, place=op.place)
        for op in block.ops
    ]
    return TtirBlock(block.label, tuple(map(tile, block.arguments)), ops)
