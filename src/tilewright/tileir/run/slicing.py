"""Finds the values on which branches, loop bounds and addresses of a kernel depend. A dry run computes only these.

The search starts at the operands of branches, loops and memory accesses. It goes backwards through the operations that
define a value, and through the values that loops and branches carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.tileir.read.tree import KernelEntry, Op, TileType

DECIDING = {"if": ("condition",), "for": ("lowerBound", "upperBound", "step")}
ADDRESSING = ("view", "index", "source", "destination", "pointers", "mask")
"""Operands of memory operations that a dry run needs, even if it does not need the results."""
LOADS = frozenset({"load_view_tko", "load_ptr_tko", "atomic_rmw_tko", "atomic_cas_tko"})
DISTINGUISHING = frozenset(
    {"cmpi", "cmpf", "mini", "maxi", "minf", "maxf", "divi", "remi", "andi", "ori", "xori", "shri"}
)
"""Operations that can give one block another result than all others."""
PRODUCTS = frozenset({"muli", "mulf", "fma", "mmai", "mmaf"})
LINEAR = frozenset({"addi", "subi", "addf", "subf", "select", "itof"})
"""Operations that keep a function of the block number linear, unless they wrap around or are rounded. Two linear
functions that agree for a few blocks agree for nearly all blocks. A product of two functions of the block number is not
linear: it may agree for the compared blocks only."""
CARRYING = frozenset({
    "negi", "negf", "exti", "assume", "offset", "bitcast", "pack", "unpack", "broadcast", "reshape", "permute",
    "insert", "cat", "ptr_to_int", "int_to_ptr", "ptr_to_ptr",
})  # fmt: skip
"""Operations whose results tell blocks apart just as their operands do."""
LEAVES = ("continue", "break", "yield")


def needed(entry: KernelEntry, distinguishing: int = 0) -> frozenset[str]:
    """Returns the names of the values that addresses and control flow depend on.

    distinguishing: adds the `recorded` values with at most this many elements, and the values that these depend on.
    """
    ops = list(entry.walk())
    deciding = ((op, ADDRESSING if op.address else DECIDING.get(op.name, ())) for op in ops)
    roots = {name for op, operands in deciding for operand in operands for name in op.operands.get(operand, ())}
    if distinguishing:
        sizes = {op.results[0]: op.tile().size for op in (*_telling(ops), *_combining(ops))}
        roots |= {name for name, size in sizes.items() if size <= distinguishing}
    carried = [flow for op in ops for flow in flows(op)]
    size = -1
    while size != len(roots):
        size = len(roots)
        for op in reversed(ops):
            if not op.regions and not roots.isdisjoint(op.results):
                operands = [op.operands.get("paddingValue", ())] if op.name in LOADS else op.operands.values()
                roots.update(name for names in operands for name in names)
        for targets, sources in carried:
            if not roots.isdisjoint(targets):
                roots.update(sources)
    return frozenset(roots)


def telling(entry: KernelEntry) -> frozenset[str]:
    """Returns the names of the values that can distinguish one block from all other blocks, or from the compared
    blocks.

    These are results of `DISTINGUISHING` operations, and functions of the block number that are not linear. Values that
    depend on loaded data are left out.
    """
    return frozenset(op.results[0] for op in _telling(list(entry.walk())))


def recorded(entry: KernelEntry) -> frozenset[str]:
    """Returns the names of the `telling` values, and of all others in which blocks that differ may become equal: sums
    and products wrap around, or are rounded, and two steps along the block number may have a difference in one block
    alone. Values that depend on loaded data are left out."""
    return telling(entry) | {op.results[0] for op in _combining(list(entry.walk()))}


def _telling(ops: Sequence[Op]) -> list[Op]:
    numbers = _numbers(ops)

    def bends(op: Op) -> bool:
        if op.name in PRODUCTS:
            return all(not numbers.isdisjoint(op.operands[factor]) for factor in ("lhs", "rhs"))
        if op.name == "extract":
            return not numbers.isdisjoint(op.operands["indices"])
        return op.name not in LINEAR | CARRYING and not numbers.isdisjoint(op.results)

    return [op for op in _known(ops) if op.name in DISTINGUISHING or bends(op)]


def _combining(ops: Sequence[Op]) -> list[Op]:
    numbers = _numbers(ops)
    return [op for op in _known(ops) if op.name not in CARRYING and not numbers.isdisjoint(op.results)]


def _numbers(ops: Sequence[Op]) -> set[str]:
    """Returns the names of the values that depend on the block number."""
    return _reached(ops, {name for op in ops if op.name == "get_tile_block_id" for name in op.results})


def _known(ops: Sequence[Op]) -> list[Op]:
    """Returns the operations whose result is a tile, computed without loaded data."""
    loaded = _reached(ops, {name for op in ops if op.name in LOADS for name in op.results})
    return [
        op for op in ops
        if op.result_types and isinstance(op.result_types[0], TileType)
        and (not op.regions or op.name in ("reduce", "scan")) and op.name != "get_tile_block_id"
        and loaded.isdisjoint(op.results)
    ]  # fmt: skip


def _reached(ops: Sequence[Op], reached: set[str]) -> set[str]:
    """Returns the names of all values that depend on the values in ``reached``."""
    carried = [flow for op in ops for flow in flows(op)]
    counted = [
        ({op.regions[0].arguments[0][0]}, {name for bound in DECIDING["for"] for name in op.operands[bound]})
        for op in ops if op.name == "for"
    ]  # fmt: skip
    carried += counted
    size = -1
    while size != len(reached):
        size = len(reached)
        for op in ops:
            if not op.regions and any(not reached.isdisjoint(names) for names in op.operands.values()):
                reached.update(op.results)
        for targets, sources in carried:
            if not reached.isdisjoint(sources):
                reached.update(targets)
    return reached


def flows(op: Op) -> Iterator[tuple[set[str], set[str]]]:
    """Yields a pair for each value that an operation with regions passes in or out: the names that receive the value,
    and the names from which it may come."""
    if op.name in ("reduce", "scan"):
        ends = op.regions[0].body[-1].operands.get("operands", ())
        inside = {name for name, _ in op.regions[0].arguments}
        yield set(op.results) | inside, {*op.operands["operands"], *ends}
    elif op.name in ("if", "for", "loop"):
        leaving = [names for region in op.regions for names in _leaving(region.body, op.name) if names]
        initial = op.operands.get("initValues", ())
        for place, result in enumerate(op.results):
            targets, sources = {result}, {names[place] for names in leaving if place < len(names)}
            if op.name != "if":
                arguments = op.regions[0].arguments[-len(initial) :]
                targets.add(arguments[place][0])
                sources.add(initial[place])
            yield targets, sources


def _leaving(body: tuple[Op, ...], owner: str) -> Iterator[tuple[str, ...]]:
    """Yields the operands of the terminators that pass values to ``owner``, not to an operation inside it."""
    for inner in body:
        if inner.name in LEAVES:
            if (inner.name == "yield") == (owner == "if"):
                yield inner.operands.get("operands", ())
        elif inner.name == "if" and owner != "if":
            for region in inner.regions:  # a break or a continue may be inside an if
                yield from _leaving(region.body, owner)
