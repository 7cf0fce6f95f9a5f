"""Finds the values on which branches, loop bounds and addresses of a kernel depend. A dry run computes only these.

The search starts at the operands of branches, loops and memory accesses. It goes backwards through the operations that
define a value, and through the values that loops and branches carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from tilewright.tileir.read.tree import KernelEntry, Op

DECIDING = {"if": ("condition",), "for": ("lowerBound", "upperBound", "step")}
ADDRESSING = ("view", "index", "source", "destination", "pointers", "mask")
"""Operands of memory operations that a dry run needs, even if it does not need the results."""
LOADS = frozenset({"load_view_tko", "load_ptr_tko", "atomic_rmw_tko", "atomic_cas_tko"})
LEAVES = ("continue", "break", "yield")


@lru_cache(64)
def needed(entry: KernelEntry) -> frozenset[str]:
    """Returns the names of the values that addresses and control flow depend on."""
    ops = list(entry.walk())
    deciding = ((op, ADDRESSING if op.address else DECIDING.get(op.name, ())) for op in ops)
    roots = {name for op, operands in deciding for operand in operands for name in op.operands.get(operand, ())}
    return behind(ops, roots, lambda load: load.operands.get("paddingValue", ()))


def behind(ops: Sequence[Op], roots: set[str], of_load: Callable[[Op], Iterable[str]]) -> frozenset[str]:
    """Returns ``roots`` and all values on which ``roots`` depend.

    of_load: returns the operands of a load on which its result counts as dependent.
    """
    carried = [flow for op in ops for flow in flows(op)]
    size = -1
    while size != len(roots):
        size = len(roots)
        for op in reversed(ops):
            if not op.regions and not roots.isdisjoint(op.results):
                operands = [of_load(op)] if op.name in LOADS else op.operands.values()
                roots.update(name for names in operands for name in names)
        for targets, sources in carried:
            if not roots.isdisjoint(targets):
                roots.update(sources)
    return frozenset(roots)


def flows(op: Op) -> Iterator[tuple[set[str], set[str]]]:
    """Yields a pair of sets for each value that an operation with regions passes into or out of a region.

    The first set has the names that receive the value, the second set has the names from which the value may come.
    """
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
