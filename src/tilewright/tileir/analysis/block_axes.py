"""Finds how the stores of a kernel depend on the block number, and whether this is apart for each axis of the grid."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache

from tilewright.languages.base import Argument, ListArgument
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.analysis.touched import Origins
from tilewright.tileir.read.tree import KernelEntry, Op, PartitionViewType, StridedViewType
from tilewright.tileir.run.dependence import reached
from tilewright.tileir.run.slicing import ADDRESSING, DECIDING, LEAVES, behind

LOOP = 3
"""Counts as one more axis: what differs between the iterations of a loop."""


def axes_read(entry: KernelEntry) -> tuple[int, ...]:
    """Returns the axes of the grid (0 to 2) along which the kernel reads its block number."""
    used = {name for op in entry.walk() for names in op.operands.values() for name in names}
    ids = [op.results for op in entry.walk() if op.name == "get_tile_block_id"]
    return tuple(axis for axis in range(3) if any(results[axis] in used for results in ids))


def deciding_stores(entry: KernelEntry) -> frozenset[str]:
    """Returns the names of the values that decide which elements the kernel stores. Parameters are among them."""
    ops = list(entry.walk())
    roots = {name for op in ops if _is_store(op) for name in _addressing(op)}
    roots.update(name for op in ops for name in _deciding(op))
    return behind(ops, roots, lambda load: load.operands.get("paddingValue", ()))


def are_apart(entry: KernelEntry, arguments: Sequence[Argument]) -> bool:
    """Returns whether the stored elements are a product, with one factor for each axis of the grid.

    Then an element that no block stores because of its position along one axis is stored by no number of blocks along
    the other axes. The result is conservative: each index of a store, and each branch and loop around it, depends on
    one axis of the grid. What differs between iterations may depend on one axis, too. Several stores to an array
    compute the indices that depend on the block alike, and no branch or loop around them depends on the block.
    """
    ops, origins = list(entry.walk()), Origins(entry, arguments)
    stores = [op for op in ops if _is_store(op)]
    places = [origins.arrays(op.address or "") for op in stores]
    if any(names is None or len(names) != 1 for names in places) or _have_lists(arguments):
        return False
    ids = [op.results for op in ops if op.name == "get_tile_block_id"]
    loops = [op for op in ops if op.name in ("for", "loop")]
    in_loops = {name for op in loops for name in (*op.results, *(each for each, _ in op.regions[0].arguments))}
    along = [reached(ops, {results[axis] for results in ids}) for axis in range(3)]
    along.append(reached(ops, in_loops))
    around = [name for op in ops if _decides_stores(op) for name in _deciding(op)]

    def axes(name: str) -> frozenset[int]:
        return frozenset(axis for axis, names in enumerate(along) if name in names)

    if not all(_one_axis_each([axes(name) for name in (*_addressing(op), *around)]) for op in stores):
        return False
    numbers = along[0] | along[1] | along[2]
    made = {name: op for op in ops for name in op.results}
    forms = {(place, _form(op, numbers, made)) for op, place in zip(stores, places, strict=True)}
    return len(places) == len(set(places)) or (len(forms) == len(set(places)) and numbers.isdisjoint(around))


def _have_lists(arguments: Sequence[Argument]) -> bool:
    return any(isinstance(argument, ListArgument) for argument in arguments)


def _form(store: Op, numbers: set[str], made: Mapping[str, Op]) -> Hashable:
    """Returns how a store computes the indices that depend on the block. It is equal only for equal computations.

    numbers: the values that depend on the block. made: the operation that makes each value.
    """
    view = next(iter(store.operand_types.get("view", ())), None)
    if not isinstance(view, (PartitionViewType, StridedViewType)) or not numbers.isdisjoint(store.operands["view"]):
        return id(store)
    steps = view.traversal_strides if isinstance(view, StridedViewType) else view.tile

    @cache
    def computed(name: str) -> Hashable:
        op = made.get(name)
        if op is None or op.regions or op.address is not None:
            return name
        operands = tuple((what, tuple(map(computed, names))) for what, names in op.operands.items())
        return op.name, op.results.index(name), repr(op.attributes), repr(op.result_types), operands

    parts = zip(store.operands["index"], view.dim_map, view.tile, steps, strict=True)
    return tuple((computed(name), *axis) for name, *axis in parts if name in numbers)


def _one_axis_each(factors: Sequence[frozenset[int]]) -> bool:
    """Returns whether no two axes of the grid are in one factor, or in factors that share the iterations of a loop."""
    joined = frozenset[int]().union(*(factor for factor in factors if LOOP in factor))
    return all(len(factor - {LOOP}) <= 1 for factor in (*factors, joined))


def _is_store(op: Op) -> bool:
    return op.address is not None and direction(op) == "store"


def _addressing(op: Op) -> Iterator[str]:
    for operand in ADDRESSING:
        yield from op.operands.get(operand, ())


def _deciding(op: Op) -> Iterator[str]:
    for operand in DECIDING.get(op.name, ()):
        yield from op.operands[operand]


def _decides_stores(op: Op) -> bool:
    """Returns whether a branch or a loop may decide whether a store runs: it has one inside, or it ends something."""
    inside = [inner for region in op.regions for each in region.body for inner in each.walk()]
    leaves = {*LEAVES, "return"} - {"yield"}
    return any(_is_store(inner) or (op.name == "if" and inner.name in leaves) for inner in inside)
