"""Finds the values of a kernel, other than addresses of data, in which blocks may differ from one another.

A value may depend on the block number alone, or on the block number and on loaded data. Both kinds matter. For example,
a kernel may compute a zero from data, add the zero to the block number, and then compare the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.tileir.read.tree import KernelEntry, Op, TileType
from tilewright.tileir.run.slicing import DECIDING, LOADS, behind, flows

DISTINGUISHING = frozenset(
    {"cmpi", "cmpf", "mini", "maxi", "minf", "maxf", "divi", "remi", "andi", "ori", "xori", "shri"}
)
"""Operations whose result in one block can differ from the result in all other blocks."""
PRODUCTS = frozenset({"muli", "mulf", "fma", "mmai", "mmaf"})
LINEAR = frozenset({"addi", "subi", "addf", "subf", "select", "itof"})
"""Operations that keep a function of the block number linear, unless the result wraps around or is rounded.

Two linear functions that agree for a few blocks agree for nearly all blocks. A product of two functions of the block
number is not linear, so two products may agree for the compared blocks only.
"""
CARRYING = frozenset({
    "negi", "negf", "exti", "assume", "offset", "bitcast", "pack", "unpack", "broadcast", "reshape", "permute",
    "insert", "cat", "ptr_to_int", "int_to_ptr", "ptr_to_ptr",
})  # fmt: skip
"""Operations whose results distinguish the same blocks as the operands."""
ROUNDING = frozenset({"ftof"})


@dataclass(frozen=True)
class BlockValue:
    """A value in which blocks may differ.

    axes: the axes of the grid (0 to 2) along which the value may differ. Blocks with the same position along these axes
        have the same value, if the blocks have the same data.
    mixed: whether the value also depends on loaded data.
    telling: whether the value can distinguish one block from all others, or from the compared blocks. Sums and products
        are not telling: different inputs give equal results only if the result wraps around or is rounded.
    """

    name: str
    axes: frozenset[int]
    mixed: bool
    telling: bool


def block_values(entry: KernelEntry, in_parts: bool) -> list[BlockValue]:
    """Returns the values that may distinguish a block from others. Mere copies of another value are omitted.

    in_parts: whether blocks also differ in the parts of tiles that they load.
    """
    ops = list(entry.walk())
    data = reached(ops, {name for op in ops if op.name in LOADS for name in op.results})
    ids = [op.results for op in ops if op.name == "get_tile_block_id"]
    along = [reached(ops, {results[axis] for results in ids if axis < len(results)}, in_parts) for axis in range(3)]
    deciding = {name for op in ops for what in DECIDING.get(op.name, ()) for name in op.operands.get(what, ())}
    control = frozenset(axis for axis in range(3) if not deciding.isdisjoint(along[axis]))
    numbers = frozenset[str]().union(*along)
    shallow = _shallow(ops, numbers, data)
    values = []
    for op in ops:
        if not _is_tile(op) or op.name in CARRYING or op.name == "get_tile_block_id":
            continue
        name, bends = op.results[0], op.name in DISTINGUISHING or _bends(op, numbers)
        axes = control | {axis for axis in range(3) if name in along[axis]}
        mixed = name in data
        if mixed:
            tells = name in numbers and name not in shallow
        else:  # a comparison may distinguish blocks that took different branches before
            tells = bool(axes) if bends else name in numbers
        if tells:
            values.append(BlockValue(name, frozenset(axes), mixed, bends))
    return values


def needed_for(entry: KernelEntry, names: Iterable[str], in_parts: bool) -> frozenset[str]:
    """Returns the names of the values that ``names`` and control flow depend on.

    Masks of loads are omitted, unless blocks differ in the padding, or in the loaded parts of tiles (``in_parts``).
    """
    ops = list(entry.walk())
    numbers = reached(ops, {name for op in ops if op.name == "get_tile_block_id" for name in op.results})
    roots = {name for op in ops for what in DECIDING.get(op.name, ()) for name in op.operands.get(what, ())}

    def accessed(load: Op) -> Iterator[str]:
        padding = load.operands.get("paddingValue", ())
        masked = in_parts or not numbers.isdisjoint(padding)
        for what in ("view", "index", "source", *(("paddingValue", "mask") if masked else ())):
            yield from load.operands.get(what, ())

    return behind(ops, roots.union(names), accessed)


def reached(ops: Sequence[Op], roots: Iterable[str], in_parts: bool = False) -> set[str]:
    """Returns the names of all values that depend on the values in ``roots``, also through control flow.

    A loaded value counts as dependent on its padding, but not on its address. With ``in_parts``, the loaded value also
    depends on the operands that decide which part of the tile is loaded.
    """
    found = set(roots)
    carried = [flow for op in ops for flow in _flows(op)]
    size = -1
    while size != len(found):
        size = len(found)
        for op in ops:
            operands = list(op.operands.values())
            if op.address is not None:
                deciding = ("paddingValue", *(("mask", "index", "view") if in_parts else ()))
                operands = [op.operands.get(what, ()) for what in deciding]
            if not op.regions and any(not found.isdisjoint(names) for names in operands):
                found.update(op.results)
        for targets, sources in carried:
            if not found.isdisjoint(sources):
                found.update(targets)
    return found


def _flows(op: Op) -> Iterator[tuple[set[str], set[str]]]:
    """Yields the flows of `slicing.flows`, and the flows through control.

    The condition of a branch flows to its results, and the bounds of a loop flow to its results.
    """
    yield from flows(op)
    if op.name in DECIDING or op.name == "loop":
        deciding = {name for what in DECIDING.get(op.name, ()) for name in op.operands[what]}
        if op.name != "if":
            deciding |= {name for inner in op.walk() if inner.name == "if" for name in inner.operands["condition"]}
        arguments = {name for name, _ in op.regions[0].arguments} if op.name != "if" else set()
        yield {*op.results, *arguments}, deciding


def _shallow(ops: Sequence[Op], numbers: Iterable[str], data: set[str]) -> set[str]:
    """Returns the values that combine a function of the block number with data in one linear operation."""
    mixed, shallow = data.intersection(numbers), set[str]()
    for op in ops:
        names = {name for operands in op.operands.values() for name in operands}
        if mixed.isdisjoint(op.results) or op.regions or op.address is not None:
            continue
        joins = op.name in LINEAR or (op.name in PRODUCTS and not _bends(op, frozenset(numbers)))
        if (joins and mixed.isdisjoint(names)) or (op.name in CARRYING | ROUNDING and mixed & names <= shallow):
            shallow.update(op.results)
    return shallow


def _bends(op: Op, numbers: frozenset[str]) -> bool:
    if op.name in PRODUCTS:
        return all(not numbers.isdisjoint(op.operands[factor]) for factor in ("lhs", "rhs"))
    if op.name == "extract":
        return not numbers.isdisjoint(op.operands["indices"])
    return op.name not in LINEAR | CARRYING and not numbers.isdisjoint(op.results)


def _is_tile(op: Op) -> bool:
    known = not op.regions or op.name in ("reduce", "scan")
    return known and op.address is None and bool(op.result_types) and isinstance(op.result_types[0], TileType)
