"""What a run did: operations, floating-point work and memory traffic, for each line of the source.

Counted by Tile IR operation while blocks run, and added up afterwards. Bytes *moved* count every access; bytes
*touched* count each byte of memory once, so they are the least that a perfect cache lets through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.tileir.read.tree import Location, Op, TileType
from tilewright.tileir.run.registry import Array

PER_ELEMENT: Mapping[str, int] = {"fma": 2} | dict.fromkeys((
    "addf", "subf", "mulf", "divf", "remf", "maxf", "minf", "sqrt", "rsqrt", "exp", "exp2", "log", "log2",
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "atan2", "fpowf", "fpowi",
), 1)  # fmt: skip
"""FLOP of one element. A transcendental counts as one; conversions, comparisons and changes of sign as none."""

COMPACT_AT = 1 << 20
"""Runs of memory that are kept before they are united."""


class Counter:
    """Counts while a grid runs."""

    def __init__(self) -> None:
        self._ops: dict[int, Op] = {}
        self._executed: dict[int, int] = defaultdict(int)
        self._iterated: dict[int, int] = defaultdict(int)
        self._moved: dict[tuple[int, str], int] = defaultdict(int)
        self._runs: dict[str, _Runs] = defaultdict(_Runs)

    def executed(self, op: Op, lanes: int) -> None:
        self._ops[id(op)] = op
        self._executed[id(op)] += lanes

    def iterated(self, op: Op, lanes: int) -> None:
        """One pass through a loop's body."""
        self._iterated[id(op)] += lanes

    def traffic(self, op: Op, direction: str, total_bytes: int, starts: Array, run_bytes: int) -> None:
        """``total_bytes`` moved; ``starts`` and ``run_bytes`` say where. ``direction``: load, store or atomic."""
        self._moved[id(op), direction] += int(total_bytes)
        for way in ("load", "store") if direction == "atomic" else (direction,):
            self._runs[way].add(starts, run_bytes)

    def counts(self, blocks: int, grid_blocks: int) -> Counts:
        """The counts so far. ``blocks``: how many ran, of the grid's ``grid_blocks``."""
        rows = tuple(
            OpCount(
                op=op,
                executed=self._executed[key],
                iterations=self._iterated.get(key, 0),
                loaded_bytes=self._moved.get((key, "load"), 0) + self._moved.get((key, "atomic"), 0),
                stored_bytes=self._moved.get((key, "store"), 0) + self._moved.get((key, "atomic"), 0),
            )
            for key, op in self._ops.items()
        )
        return Counts(rows, blocks, grid_blocks, self._runs["load"].united(), self._runs["store"].united())


@dataclass(frozen=True)
class OpCount:
    """One operation of the text, over all blocks that ran."""

    op: Op
    executed: int
    """Times that a block ran it."""
    iterations: int
    """Passes through its body, for a loop."""
    loaded_bytes: int
    stored_bytes: int

    @property
    def tensor_flop(self) -> int:
        """2·M·N·K, for each of a batch."""
        on_tensor_cores = self.op.name in ("mmaf", "mmaf_scaled", "mmai")
        return self.executed * 2 * self.op.tile().size * self.op.tile("lhs").shape[-1] if on_tensor_cores else 0

    @property
    def flop(self) -> int:
        """Floating-point work outside the tensor cores."""
        return self.executed * vector_flop(self.op)

    @property
    def elements(self) -> int:
        """Elements computed: of the first result, over all executions."""
        kind = self.op.result_types[0] if self.op.result_types else None
        return self.executed * (kind.size if isinstance(kind, TileType) else 0)


@dataclass(frozen=True)
class _Sums:
    """Several operations, over all blocks that ran."""

    ops: tuple[OpCount, ...]

    @property
    def tensor_flop(self) -> int:
        return sum(one.tensor_flop for one in self.ops)

    @property
    def flop(self) -> int:
        return sum(one.flop for one in self.ops)

    @property
    def loaded_bytes(self) -> int:
        return sum(one.loaded_bytes for one in self.ops)

    @property
    def stored_bytes(self) -> int:
        return sum(one.stored_bytes for one in self.ops)

    @property
    def by_kind(self) -> dict[str, int]:
        """Executions of each operation, by its name."""
        executions: dict[str, int] = defaultdict(int)
        for one in self.ops:
            executions[one.op.name] += one.executed
        return dict(sorted(executions.items()))


@dataclass(frozen=True)
class LineCount(_Sums):
    location: Location | None

    @property
    def iterations(self) -> int:
        return sum(one.iterations for one in self.ops)


@dataclass(frozen=True)
class Counts(_Sums):
    """The work of the blocks that ran; `scaled` says what the whole grid does."""

    blocks: int
    grid_blocks: int
    loaded_runs: Array = field(repr=False)
    """Disjoint [start, end) byte addresses that were read, shape (n, 2)."""
    stored_runs: Array = field(repr=False)

    @property
    def sampled(self) -> bool:
        return self.blocks < self.grid_blocks

    @property
    def distinct_loaded_bytes(self) -> int:
        return _length(self.loaded_runs)

    @property
    def distinct_stored_bytes(self) -> int:
        return _length(self.stored_runs)

    def scaled(self, number: int) -> float:
        """A sum over the sampled blocks, for the whole grid."""
        return number * self.grid_blocks / self.blocks if self.blocks else 0.0

    def lines(self) -> tuple[LineCount, ...]:
        """By line of the kernel's own source (what it calls counts for the line that calls), in order."""
        groups: dict[tuple[str, int], list[OpCount]] = defaultdict(list)
        for one in self.ops:
            place = one.op.location.outermost if one.op.location else None
            groups[(place.file, place.line) if place else ("", 0)].append(one)
        ordered = (group for _, group in sorted(groups.items()))
        return tuple(LineCount(tuple(of), at.outermost if (at := of[0].op.location) else None) for of in ordered)


def vector_flop(op: Op) -> int:
    """FLOP of one execution elsewhere; a reduction of n elements applies its body n − 1 times."""
    if op.name in ("reduce", "scan"):
        source = op.tile("operands")
        extent = source.shape[op.attributes["dim"]]
        applied: int = source.size // extent * (extent - 1)
        return applied * sum(vector_flop(inner) for inner in op.regions[0].body)
    kind = op.result_types[0] if op.result_types else None
    return PER_ELEMENT.get(op.name, 0) * kind.size if isinstance(kind, TileType) else 0


class _Runs:
    """A set of byte addresses, kept as runs and united now and then."""

    def __init__(self) -> None:
        self._pending: list[Array] = []
        self._count, self._limit = 0, COMPACT_AT

    def add(self, starts: Array, run_bytes: int) -> None:
        starts = np.asarray(starts, np.int64).ravel()
        if not starts.size or run_bytes <= 0:
            return
        self._pending.append(np.stack([starts, starts + run_bytes], axis=1))
        self._count += len(starts)
        if self._count > self._limit:
            self.united()

    def united(self) -> Array:
        """The runs in ascending order, none touching another."""
        if not self._pending:
            return np.zeros((0, 2), np.int64)
        runs = np.concatenate(self._pending)
        runs = runs[np.argsort(runs[:, 0], kind="stable")]
        reach = np.maximum.accumulate(runs[:, 1])
        opens = np.flatnonzero(np.concatenate([[True], runs[1:, 0] > reach[:-1]]))
        closes = np.append(opens[1:] - 1, len(runs) - 1)
        united = np.stack([runs[opens, 0], reach[closes]], axis=1)
        self._pending, self._count = [united], len(united)
        self._limit = max(COMPACT_AT, 2 * self._count)
        return united


def _length(runs: Array) -> int:
    return int((runs[:, 1] - runs[:, 0]).sum()) if len(runs) else 0


def intersection(runs: Array, start: int, end: int) -> int:
    """Bytes of ``runs`` within [start, end): what of one tensor was touched."""
    return _length(np.clip(runs, start, end))
