"""Finds the grid of a launch whose author gave none, by trying numbers of blocks in the interpreter.

    lower → refuse what cannot be proved → smallest number of blocks along each axis → all blocks

No number is guessed from a form. The blocks run without data, and their stores are counted: along each axis of the
grid, the number of blocks is doubled as long as they store elements that were not stored before. The result is the
smallest grid whose blocks store all elements of all written arrays.

This is the author's grid, or a part of it that gives the same result, if the following conditions are true. Otherwise,
`GridNotFound` says which condition is false.

* Each call with this key stores the same elements: no address, branch or loop depends on data, on the number of blocks
  or on an argument that is not in the key.
* No block waits for another one, or adds to what another one has stored, so each element has one value.
* Each axis of the grid decides alone which elements are stored (`block_axes.are_apart`). So each grid that stores all
  elements has at least these blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tilewright.errors import GridNotFound
from tilewright.records import Configuration, Failed
from tilewright.runtime.search.trials import FailedTrial, SpecifiedTrial, Trial
from tilewright.task.tensors import ArraySpec, span
from tilewright.tileir.analysis.accesses import direction
from tilewright.tileir.analysis.block_axes import are_apart, axes_read, deciding_stores
from tilewright.tileir.analysis.touched import touched
from tilewright.tileir.read.reader import read_bytecode
from tilewright.tileir.read.tree import KernelEntry, Op
from tilewright.tileir.run.counting import united
from tilewright.tileir.run.interpreter import largest_tile
from tilewright.tileir.run.launching import Runnable
from tilewright.tileir.run.registry import Array, NeedsData, Unsupported
from tilewright.tileir.run.slicing import needed
from tilewright.tileir.watch.allocations import Allocation

Grid: TypeAlias = tuple[int, int, int]
MOST_BLOCKS, MOST_ADDRESSES = 1 << 17, 1 << 24
"""The most blocks of a grid that is found, and the most addresses that these blocks compute one by one. Either takes
about 10 seconds on one CPU core of 2026."""
MOST_ALONG = MOST_BLOCKS, 2**16 - 1, 2**16 - 1
AT_LEAST = 16
"""So many blocks along an axis are tried, although some more of them stored nothing else."""
SECONDS = 30.0
"""The limit for the loops of one run of the interpreter."""


@dataclass(frozen=True)
class _Loose:
    """Stands for an argument whose value is not in the key."""

    name: str


def found_grid(name: str, trial: Trial, loose: Collection[str], arch: str) -> Grid:
    """Returns the grid of a launch of the kernel ``name``.

    trial: the launch, with any grid.
    loose: the parameters of the kernel whose values are not in the key of the call.
    Raises `GridNotFound` unless the grid is proved.
    """
    try:
        return _found_grid(trial, loose, arch)
    except NeedsData as operation:
        why = f"which elements it stores depends on data, at {operation}"
    except (Unsupported, TypeError, MemoryError) as error:
        why = f"the interpreter cannot run it: {error or type(error).__name__}"
    except _Unproved as reason:
        why = str(reason)
    fix = "fix: pass grid=lambda call, config: (…,)"
    raise GridNotFound(f"{name}: no grid= is given, and the grid cannot be found: {why}; {fix}")


class _Unproved(Exception):
    """Why the grid cannot be found."""


def _found_grid(trial: Trial, loose: Collection[str], arch: str) -> Grid:
    described = trial.specified()
    if isinstance(described, FailedTrial):
        raise _Unproved(described.reason)
    lowered = described.language.lower(described.launch, {}, Configuration(()), arch)
    if isinstance(lowered, Failed):
        raise _Unproved(f"the kernel cannot be lowered: {lowered.reason}")
    module, arguments = read_bytecode(lowered.code), described.arguments()
    entry = module.entry()
    written = touched(entry, arguments).written
    if not written:
        raise _Unproved("the kernel writes no array")
    specs = described.specs()
    _refuse_dependent(entry)
    _refuse_loose(described, entry, loose)
    by_pointers = any(op.name.startswith("store_ptr") for op in entry.walk())
    for name in sorted(written):
        if by_pointers and span(specs[name].shape, specs[name].strides) != math.prod(specs[name].shape):
            raise _Unproved(f"'{name}' has gaps between its elements, and the kernel stores by pointers")
    axes = axes_read(entry)
    if len(axes) > 1 and not are_apart(entry, arguments):
        raise _Unproved("several axes of the grid decide together which elements a block stores")
    runnable = Runnable(described.launch, module, arguments, lowered.code)
    return _GridSearch(runnable, specs, written).grid(axes)


def _refuse_dependent(entry: KernelEntry) -> None:
    for op in entry.walk():
        if op.name == "get_num_tile_blocks":
            raise _Unproved(f"the kernel reads the number of blocks{_place(op)}, so it may run with any")
        if direction(op) == "atomic" or op.attributes.get("memory_ordering_semantics", "weak") != "weak":
            raise _Unproved(f"blocks may depend on one another, by an atomic operation or a memory order{_place(op)}")


def _place(op: Op) -> str:
    return f" ({op.location})" if op.location else ""


def _refuse_loose(described: SpecifiedTrial, entry: KernelEntry, loose: Collection[str]) -> None:
    """Raises `_Unproved` if the grid may depend on an argument that is not in the key.

    This is an array, a constant, or a number on which addresses, branches or loops depend.
    """
    named = dict(zip(described.names, described.launch.args, strict=True))
    for name in sorted(loose):
        if not isinstance(named[name], (bool, int, float)):
            raise _Unproved(f"'{name}' is not in the key of the call (as an unkeyed array, or a changing object)")
    launch = replace(described.launch, args=tuple(_Loose(n) if n in loose else each for n, each in named.items()))
    words: Sequence[object] = described.language.arguments(launch)
    deciding = deciding_stores(entry)
    for name in sorted(loose):
        place = next((place for place, word in enumerate(words) if word == _Loose(name)), None)
        if place is None or entry.parameters[place][0] in deciding:
            raise _Unproved(
                f"which elements it stores may depend on '{name}', whose value is not in the key of the call"
            )


class _GridSearch:
    """The search for the grid of one launch.

    arrays: all arrays. written: the names of the arrays that the kernel writes.
    """

    def __init__(self, runnable: Runnable, arrays: Mapping[str, ArraySpec], written: Collection[str]) -> None:
        self._runnable, self._arrays = runnable, arrays
        self._sizes = {name: arrays[name].nbytes for name in sorted(written)}
        entry = runnable.module.entry()
        self._most = min(MOST_BLOCKS, MOST_ADDRESSES // largest_tile(entry, needed(entry)))

    def grid(self, axes: Sequence[int]) -> Grid:
        found = [self._smallest(axis) if axis in axes else (1, {}) for axis in range(3)]
        grid = found[0][0], found[1][0], found[2][0]
        blocks = math.prod(grid)
        if blocks > self._most or any(number > most for number, most in zip(grid, MOST_ALONG, strict=True)):
            raise _Unproved(
                f"its grid of {grid} blocks is too large to follow; at most {self._most} blocks are followed"
            )
        stored = found[axes[0]][1] if len(axes) == 1 else self._stored(grid, 0, blocks)
        for name, size in self._sizes.items():
            if (missing := size - _length(stored[name])) > 0:
                also = f"{missing} of the {size} bytes of '{name}'"
                raise _Unproved(f"no block stores {also}, so the kernel may have to leave elements as they were")
        return grid

    def _smallest(self, axis: int) -> tuple[int, dict[str, Array]]:
        """Returns the smallest number of blocks along ``axis`` that store as many elements as any larger number, with
        one block along the other axes. Also returns what these blocks store."""
        known, low, most, end, more_stored = self._along(axis, 0, 1), 0, 1, 1, True
        before = known
        while not self._whole(known) and (more_stored or end < AT_LEAST):
            more = _joined(known, self._along(axis, end, 2 * end))
            more_stored = _total(more) > _total(known)
            if more_stored:
                before, low, most = known, end, 2 * end
            known, end = more, 2 * end
        while most - low > 1:
            middle = (low + most) // 2
            some = _joined(before, self._along(axis, low, middle))
            if _total(some) == _total(known):
                most = middle
            else:
                before, low = some, middle
        return most, known

    def _along(self, axis: int, first: int, end: int) -> dict[str, Array]:
        if end > 2 * (most := min(MOST_ALONG[axis], self._most)):
            raise _Unproved(f"it may have more than {most} blocks along {'xyz'[axis]}, too many to follow")
        grid = [1, 1, 1]
        grid[axis] = end
        return self._stored((grid[0], grid[1], grid[2]), first, end)

    def _stored(self, grid: Grid, first: int, end: int) -> dict[str, Array]:
        """Returns the ranges of addresses that some blocks of a grid store in each written array."""
        runnable = replace(self._runnable, launch=replace(self._runnable.launch, grid=grid))
        done, placed = runnable.dry_run(self._arrays, only=range(first, end), seconds=SECONDS, checks_assumptions=False)
        runs = done.counts.stored_runs
        return {each.name: runs[_within(runs, each)] for each in placed if each.name in self._sizes}

    def _whole(self, stored: Mapping[str, Array]) -> bool:
        return all(_length(stored[name]) >= size for name, size in self._sizes.items())


def _within(runs: Array, array: Allocation) -> Array:
    """Returns which ranges are in an array."""
    return (runs[:, 0] >= array.address) & (runs[:, 1] <= array.address + array.nbytes)


def _joined(some: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Array]:
    return {name: united([some[name], others[name]]) for name in some}


def _length(runs: Array) -> int:
    return int((runs[:, 1] - runs[:, 0]).sum())


def _total(stored: Mapping[str, Array]) -> int:
    return sum(map(_length, stored.values()))
