"""Finds token chains: the memory operations for which each memory operation waits.

Tile IR orders memory accesses by tokens only. A token may pass through ``join_tokens``, branches, and loops that carry
the token to the next iteration. The search follows the token there, so the chains consist of operations that access
memory, print or fence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.tileir.read.tree import KernelEntry, Op, TokenType


@dataclass(frozen=True)
class Wait:
    """A wait for ``op``.

    earlier_iteration: whether the wait is only for the execution of ``op`` in an earlier iteration. A loop must then be
        around both operations.
    """

    op: Op
    earlier_iteration: bool


class TokenChains:
    """The token chains of one kernel entry."""

    def __init__(self, entry: KernelEntry) -> None:
        self._makers: dict[str, Op] = {}
        # For each token: the tokens from which it may come, each with a flag: whether from the previous iteration.
        self._sources: dict[str, list[tuple[str, bool]]] = defaultdict(list)
        self._collect(entry.body, None)
        self._waits: dict[Op, tuple[Wait, ...]] = {}
        self._lengths: dict[Op, int] = {}
        for op in entry.walk():  # the earlier operations of a chain come first in the text
            if is_ordered(op):
                self._waits[op] = self._direct_waits(op)
                before = [self._lengths[w.op] for w in self._waits[op] if not w.earlier_iteration]
                self._lengths[op] = 1 + max(before) if before else 0

    @property
    def ops(self) -> tuple[Op, ...]:
        """Every operation that tokens order, in the order of the text."""
        return tuple(self._waits)

    def waits(self, op: Op) -> tuple[Wait, ...]:
        """Returns the operations for which ``op`` waits directly, in the order of the text."""
        return self._waits[op]

    def all_before(self, op: Op) -> frozenset[Wait]:
        """Returns all operations for which ``op`` waits, directly or through other operations."""
        found: set[Wait] = set()
        open_ = list(self._waits[op])
        while open_:
            wait = open_.pop()
            if wait not in found:
                found.add(wait)
                back = wait.earlier_iteration
                open_ += [Wait(w.op, back or w.earlier_iteration) for w in self._waits[wait.op]]
        return frozenset(found)

    def length(self, op: Op) -> int:
        """Returns how many operations must run one after another before ``op``, in one iteration."""
        return self._lengths[op]

    def _collect(self, body: Sequence[Op], loop: Op | None) -> None:
        for op in body:
            if op.name == "join_tokens":
                for token in op.operands["tokens"]:
                    self._link(op.results, [token] * len(op.results))
            elif is_ordered(op):
                results = zip(op.results, op.result_types, strict=True)
                self._makers |= {name: op for name, type_ in results if isinstance(type_, TokenType)}
            elif op.name in ("for", "loop"):
                first = op.operands["initValues"]
                self._link(_carried(op), first)
                if op.name == "for":
                    self._link(op.results, first)
                self._collect(op.regions[0].body, op)
            elif op.name == "if":
                for region in op.regions:
                    self._collect(region.body, loop)
                    if region.body and region.body[-1].name == "yield":
                        self._link(op.results, region.body[-1].operands["operands"])
            elif loop is not None and op.name in ("continue", "break"):
                last = op.operands["operands"]
                if op.name == "continue":
                    self._link(_carried(loop), last, earlier=True)
                if op.name == "break" or loop.name == "for":
                    self._link(loop.results, last)

    def _link(self, targets: Sequence[str], sources: Sequence[str], earlier: bool = False) -> None:
        for target, source in zip(targets, sources, strict=False):
            self._sources[target].append((source, earlier))

    def _direct_waits(self, op: Op) -> tuple[Wait, ...]:
        found: dict[Op, bool] = {}
        seen: set[tuple[str, bool]] = set()
        open_ = [(name, False) for name in op.operands.get("token", ())]
        while open_:
            name, earlier = open_.pop()
            if (name, earlier) in seen:
                continue
            seen.add((name, earlier))
            if name in self._makers:
                maker = self._makers[name]
                found[maker] = earlier and found.get(maker, True)
            open_ += [(source, earlier or back) for source, back in self._sources.get(name, ())]
        return tuple(Wait(maker, found[maker]) for maker in sorted(found, key=lambda maker: maker.text_line))


def is_ordered(op: Op) -> bool:
    """Tells whether tokens order this operation. They order all operations with a token, except ``join_tokens``."""
    return op.name.endswith("_tko") or "token" in op.operands


def _carried(loop: Op) -> tuple[str, ...]:
    """Returns the names that the loop's carried values have inside the loop."""
    names = tuple(name for name, _ in loop.regions[0].arguments)
    return names[1:] if loop.name == "for" else names
