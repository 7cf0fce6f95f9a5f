"""Finds which pointers of a kernel may point to the same memory, by following them from the kernel's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tilewright.languages.tileir_from_triton.ttir import SsaValue, TtirOp

READS = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})
WRITES = frozenset(
    {
        "tt.store",
        "tt.descriptor_store",
        "tt.descriptor_scatter",
        "tt.descriptor_reduce",
        "tt.atomic_rmw",
        "tt.atomic_cas",
    }
)
STORES = frozenset({"tt.store", "tt.descriptor_store", "tt.descriptor_scatter"})
"""The operations of `WRITES` that do not read."""
PASS_ON = frozenset({"scf.yield", "scf.condition", "cf.br", "cf.cond_br"})
Set = int
"""The id of a set of pointers that may point to the same memory."""


class Aliases:
    """The pointers of a kernel, divided into sets. Pointers in different sets share no memory."""

    def __init__(self, function: TtirOp, arrays: Sequence[int] | None = None) -> None:
        """Divides the pointers into sets.

        arrays: an id for each parameter. Pointers with different ids share no memory. By default all may share memory,
            because a launch may pass one array twice.
        """
        self._above: dict[object, object] = {}
        parameters = function.regions[0][0].arguments
        for at, parameter in enumerate(parameters):
            self._join(parameter, ("array", arrays[at] if arrays else 0))
        for each in function.walk():
            for one, other in self._flows(each):
                self._join(one, other)
        accesses = [each for each in function.walk() if each.name in READS | WRITES]
        roots = {self._root(access.operands[0]) for access in accesses}
        self._number: dict[object, Set] = {root: number for number, root in enumerate(roots)}
        self.written = frozenset(self.of(access) for access in accesses if access.name in WRITES)

    def of(self, access: TtirOp) -> Set:
        return self._number[self._root(access.operands[0])]

    def accessed(self, ops: Sequence[TtirOp]) -> dict[Set, bool]:
        """Maps each set that ``ops`` access to whether ``ops`` write to it. Nested operations count, too."""
        found: dict[Set, bool] = {}
        for access in (inner for op in ops for inner in op.walk() if inner.name in READS | WRITES):
            found[self.of(access)] = found.get(self.of(access), False) or access.name in WRITES
        return found

    def touched(self, function: TtirOp) -> tuple[frozenset[int], frozenset[int]]:
        """Returns the positions of the parameters whose arrays the kernel reads, and of those that it writes.

        An operation that is not known to only pass an address on may do both.
        """
        read, written = set[object](), set[object]()
        for op in function.walk():
            addresses = [value for value in op.operands if _points(value)]
            passes_on = op.regions or op.name in PASS_ON or any(map(_points, op.results))
            if op.name in READS | WRITES or not passes_on:
                roots = set(map(self._root, addresses))
                read |= roots if op.name not in STORES else set()
                written |= roots if op.name not in READS else set()
        parameters = list(enumerate(map(self._root, function.regions[0][0].arguments)))
        return (
            frozenset(at for at, root in parameters if root in read),
            frozenset(at for at, root in parameters if root in written),
        )

    def _flows(self, op: TtirOp) -> Iterator[tuple[object, object]]:
        """Yields pairs of values that belong to the same set.

        The two values may be equal, or one value is derived from the other.
        """
        unknown = ("array", 0)
        pointers = [value for value in op.operands if _points(value)]
        for result in filter(_points, op.results):
            yield from ((result, pointer) for pointer in pointers)
            if not pointers and not op.regions:  # the pointer comes from memory or from an integer
                yield result, unknown
                yield from ((other, unknown) for other in list(self._above) if isinstance(other, tuple))
        ends = [block.ops[-1] for blocks in op.regions for block in blocks if block.ops]
        inside = [value for blocks in op.regions for block in blocks for value in block.arguments]
        if op.name == "tt.func":
            yield from _branches(op)
            return
        flowing = [*op.results, *inside, *op.operands, *(value for end in ends for value in end.operands)]
        if op.regions and op.name.startswith("scf."):
            positions = _positions(op, ends)
            for group in positions or [flowing]:
                points = [value for value in group if _points(value)]
                yield from pairwise(points)

    def _root(self, value: object) -> object:
        while (above := self._above.setdefault(value, value)) is not value:
            value = above
        return value

    def _join(self, one: object, other: object) -> None:
        self._above[self._root(one)] = self._root(other)


def _points(value: SsaValue) -> bool:
    return value.type.pointer or value.type.descriptor


def _positions(op: TtirOp, ends: list[TtirOp]) -> list[list[SsaValue]]:
    """Returns groups of SSA values that may be equal at run time.

    There is one group for each value that a loop carries, or for each result of a branch.
    """
    columns: tuple[tuple[SsaValue, ...], ...]
    if op.name == "scf.for":
        columns = (op.operands[3:], op.body().arguments[1:], ends[0].operands, op.results)
    elif op.name == "scf.if":
        columns = (op.results, *(end.operands for end in ends))
    else:
        return []
    return [list(column) for column in zip(*columns, strict=True)]


def _branches(function: TtirOp) -> Iterator[tuple[object, object]]:
    blocks = {block.label: block for block in function.regions[0]}
    for block in function.regions[0]:
        for label, passed in branches_of(block.ops[-1]):
            pairs = zip(blocks[label].arguments, passed, strict=True)
            yield from ((one, other) for one, other in pairs if _points(one))


def branches_of(end: TtirOp) -> list[tuple[str, tuple[SsaValue, ...]]]:
    """Returns the targets of a terminator: the labels of the next blocks, and the values for their arguments."""
    if end.name == "cf.br":
        return [(end.successors[0], end.operands)]
    if end.name == "cf.cond_br":
        return list(zip(end.successors, end.groups[1:], strict=True))
    return []
