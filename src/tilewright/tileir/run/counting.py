"""Counts the work of a run: operations, floating-point work and memory traffic, for each line of the source.

The work is counted for each Tile IR operation while blocks run, and added up afterwards. Loaded and stored bytes count
every access. *Distinct* bytes count each byte of memory once: the traffic that even a perfect cache does not save.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.tileir.read.tree import Location, Op, TileType
from tilewright.tileir.run.registry import Array

PER_ELEMENT: Mapping[str, int] = {"fma": 2} | dict.fromkeys((
    "addf", "subf", "mulf", "divf", "remf", "maxf", "minf", "sqrt", "rsqrt", "exp", "exp2", "log", "log2",
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "atan2", "fpowf", "fpowi",
), 1)  # fmt: skip
"""FLOP of one element. A transcendental function counts 1; conversions, comparisons and changes of sign count 0."""
COMPACT_AT = 1 << 20  # with more address ranges than this, overlapping ranges are merged


class Counter:
    """Collects the counts while a grid runs. The keys are the ``id`` of the operations."""

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
        self._iterated[id(op)] += lanes

    def busiest(self, names: frozenset[str] | None) -> int:
        """Returns the most elements that one operation has computed, over all blocks up to now.

        names: the results that count. None: all results.
        """
        results = (
            (self._executed[key], name, kind)
            for key, op in self._ops.items() for name, kind in zip(op.results, op.result_types, strict=True)
        )  # fmt: skip
        counted = (pair for pair in results if names is None or pair[1] in names)
        return max((times * kind.size for times, _, kind in counted if isinstance(kind, TileType)), default=0)

    def traffic(self, op: Op, direction: str, total_bytes: int, starts: Array, run_bytes: int) -> None:
        """Counts the bytes of a load, store or atomic. It accesses ``run_bytes`` from each address in ``starts``."""
        self._moved[id(op), direction] += int(total_bytes)
        for way in ("load", "store") if direction == "atomic" else (direction,):
            self._runs[way].add(starts, run_bytes)

    def counts(self, blocks: int, grid_blocks: int) -> Counts:
        """Returns the counts of all blocks that ran.

        blocks: the number of blocks that ran. grid_blocks: the number of blocks in the grid.
        """

        def moved(key: int, direction: str) -> int:
            return self._moved.get((key, direction), 0) + self._moved.get((key, "atomic"), 0)

        rows = tuple(
            OpCount(op, self._executed[key], self._iterated.get(key, 0), moved(key, "load"), moved(key, "store"))
            for key, op in self._ops.items()
        )
        return Counts(rows, blocks, grid_blocks, self._runs["load"].united(), self._runs["store"].united())


@dataclass(frozen=True)
class OpCount:
    """The work of one operation in the text, over all blocks that ran. ``iterations``: the iterations of a loop; 0 for
    other operations."""

    op: Op
    executed: int
    iterations: int
    loaded_bytes: int
    stored_bytes: int

    @property
    def tensor_flop(self) -> int:
        """FLOP on the tensor cores: 2·M·N·K for each matrix product of a batch."""
        on_tensor_cores = self.op.name in ("mmaf", "mmaf_scaled", "mmai")
        return self.executed * 2 * self.op.tile().size * self.op.tile("lhs").shape[-1] if on_tensor_cores else 0

    @property
    def flop(self) -> int:
        """FLOP outside the tensor cores."""
        return self.executed * vector_flop(self.op)


@dataclass(frozen=True)
class _Sums:
    """The work of several operations, over all blocks that ran."""

    ops: tuple[OpCount, ...]

    @property
    def tensor_flop(self) -> int:
        return sum(op.tensor_flop for op in self.ops)

    @property
    def flop(self) -> int:
        return sum(op.flop for op in self.ops)

    @property
    def loaded_bytes(self) -> int:
        return sum(op.loaded_bytes for op in self.ops)

    @property
    def stored_bytes(self) -> int:
        return sum(op.stored_bytes for op in self.ops)

    @property
    def by_kind(self) -> dict[str, int]:
        """The number of executions by the operation's name."""
        executions: dict[str, int] = defaultdict(int)
        for one in self.ops:
            executions[one.op.name] += one.executed
        return dict(sorted(executions.items()))


@dataclass(frozen=True)
class LineCount(_Sums):
    location: Location | None

    @property
    def iterations(self) -> int:
        return sum(op.iterations for op in self.ops)


@dataclass(frozen=True)
class Counts(_Sums):
    """The work of the blocks that ran; `scaled` extrapolates to the whole grid.

    loaded_runs, stored_runs: the accessed addresses as disjoint ranges [start, end), shape (n, 2).
    """

    blocks: int
    grid_blocks: int
    loaded_runs: Array = field(repr=False)
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
        """Extrapolates ``number``, a sum over the blocks that ran, to the whole grid."""
        return number * self.grid_blocks / self.blocks if self.blocks else 0.0

    def lines(self) -> tuple[LineCount, ...]:
        """Returns the work by line of the kernel's own source, in order. The work of a function counts for the line
        that calls the function."""
        groups: dict[tuple[str, int], tuple[Location | None, list[OpCount]]] = {}
        for count in self.ops:
            place = count.op.location.outermost if count.op.location else None
            key = (place.file, place.line) if place else ("", 0)
            groups.setdefault(key, (place, []))[1].append(count)
        return tuple(
            LineCount(tuple(ops), place) for _, (place, ops) in sorted(groups.items(), key=lambda item: item[0])
        )


def vector_flop(op: Op) -> int:
    """Returns the FLOP of one execution outside the tensor cores. Reducing n elements runs the body n − 1 times."""
    if op.name in ("reduce", "scan"):
        source = op.tile("operands")
        extent = source.shape[op.attributes["dim"]]
        applied: int = source.size // extent * (extent - 1)
        return applied * sum(vector_flop(inner) for inner in op.regions[0].body)
    kind = op.result_types[0] if op.result_types else None
    return PER_ELEMENT.get(op.name, 0) * kind.size if isinstance(kind, TileType) else 0


class _Runs:
    """A set of byte addresses, kept as ranges. If there are many, overlapping ranges are merged."""

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
        """Returns all ranges, merged by `united`."""
        runs = united(self._pending)
        self._pending, self._count = [runs], len(runs)
        self._limit = max(COMPACT_AT, 2 * self._count)
        return runs


def united(parts: Sequence[Array]) -> Array:
    """Merges overlapping and adjacent ranges. Returns all ranges [start, end) in ascending order, shape (n, 2)."""
    runs = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    if not len(runs):
        return runs
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(runs[:, 1])
    opens = np.flatnonzero(np.concatenate([[True], runs[1:, 0] > reach[:-1]]))
    closes = np.append(opens[1:] - 1, len(runs) - 1)
    return np.stack([runs[opens, 0], reach[closes]], axis=1)


def _length(runs: Array) -> int:
    return int((runs[:, 1] - runs[:, 0]).sum()) if len(runs) else 0
