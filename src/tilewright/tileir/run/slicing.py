"""Finds the values that branches, loop bounds and memory addresses of a kernel depend on. A dry run computes these.

The search goes backwards from the operands of branches, loops and memory accesses: through the operations that define
them, and through the values that loops and branches carry. `must_spill` checks a loop's accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.tileir.read.tree import KernelEntry, Op

DECIDING = {"if": ("condition",), "for": ("lowerBound", "upperBound", "step")}
ADDRESSING = ("view", "index", "source", "destination", "pointers", "mask")
"""Operands of memory operations that are needed even if the results are not."""
LOADS = frozenset({"load_view_tko", "load_ptr_tko", "atomic_rmw_tko", "atomic_cas_tko"})
LEAVES = ("continue", "break", "yield")
WORD_BITS = 32
BITS = {"f64": 64, "i64": 64, "f32": 32, "i32": 32, "tf32": 32, "f16": 16, "bf16": 16}
REGISTERS = 255  # of a thread
THREADS = 32  # of a warp
WORKER_WARPS = 4  # without the hint num_worker_warps: every sm_90 product kernel in bench/recorded/ has this number


def needed(entry: KernelEntry) -> frozenset[str]:
    """Returns the names of the values that addresses and control flow depend on."""
    ops = list(entry.walk())
    carried = [flow for op in ops for flow in flows(op)]
    deciding = ((op, ADDRESSING if op.address else DECIDING.get(op.name, ())) for op in ops)
    found = {name for op, operands in deciding for operand in operands for name in op.operands.get(operand, ())}
    size = -1
    while size != len(found):
        size = len(found)
        for op in reversed(ops):
            if not op.regions and not found.isdisjoint(op.results):
                operands = [op.operands.get("paddingValue", ())] if op.name in LOADS else op.operands.values()
                found.update(name for names in operands for name in names)
        for targets, sources in carried:
            if not found.isdisjoint(targets):
                found.update(sources)
    return frozenset(found)


def flows(op: Op) -> Iterator[tuple[set[str], set[str]]]:
    """Yields the values that an operation with regions carries: names that get a value, and names of its possible
    sources."""
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


def accumulator_words(entry: KernelEntry) -> int:
    """Returns the 32-bit registers that the accumulators of a loop need, over all threads of a cluster. Accumulators
    are the results of matrix products that a loop carries. The loop that needs most counts."""
    products = {name: op for op in entry.walk() if op.name.startswith("mma") for name in op.results}

    def words(loop: Op) -> int:
        ends = (op for op in loop.regions[0].body if op.name in LEAVES)
        carried = {name for op in ends for name in op.operands.get("operands", ()) if name in products}
        tiles = (products[name].tile() for name in carried)
        return sum(tile.size * BITS.get(str(tile.element), 0) // WORD_BITS for tile in tiles)

    return max((words(op) for op in entry.walk() if op.name in ("for", "loop")), default=0)


def must_spill(entry: KernelEntry, num_ctas: int | None, num_worker_warps: int | None) -> bool:
    """Whether the accumulators exceed the registers of an sm_90 kernel's threads, so that it must spill. On sm_90 an
    accumulator is in the registers of the threads that issue the product, in every iteration."""
    threads = THREADS * (num_worker_warps or WORKER_WARPS) * (num_ctas or 1)
    return accumulator_words(entry) > (REGISTERS - 1) * threads
