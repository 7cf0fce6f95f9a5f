"""Chooses the dimensions that a check runs on: reduced workloads, edges and random shapes.

Mistakes that depend on the shape appear at the last tile. So a dimension is reduced to one or two tiles plus the same
remainder. Only shapes that the task supports are chosen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.records import Configuration, Value
from tilewright.task.task import Task
from tilewright.task.tensors import Dims

LEAST_MODULUS = 16  # launches are specialised for extents that are divisible by 16
WORK_FLOP = 2e7  # most FLOP of a reduced workload: a fraction of a second for the interpreter on one core
WORK_ELEMENTS = 1 << 17  # most elements of all tensors of a reduced workload together
PRIMES = (7, 61)
MANY_TILES = (9, 18)
HIDDEN = 3  # random shapes for each configuration


@dataclass(frozen=True)
class Limit:
    """The most FLOP, and the most elements of all tensors, of one run."""

    flop: float = WORK_FLOP
    elements: int = WORK_ELEMENTS

    def allows(self, task: Task, dims: Dims) -> bool:
        elements = sum(math.prod(array.shape) for array in task.arrays(dims).values())
        return elements <= self.elements and task.work(dims) <= self.flop


ONE_RUN = Limit()
DEEP = Limit(elements=1 << 20)  # limits of a run with one dimension at full size


@dataclass(frozen=True)
class Moduli:
    """The sizes, such as a tile size, by which a dimension must keep its remainder. The largest size is first."""

    sizes: tuple[int, ...]
    free: bool  # no knob is named after the dimension, and the outputs are independent along it

    @property
    def least(self) -> int:
        return self.sizes[-1]


Tiles = Mapping[str, Moduli]  # by name of the dimension


def moduli(task: Task, configuration: Configuration, dims: Dims) -> dict[str, Moduli]:
    """Returns the `Moduli` of each dimension of a shape.

    The largest power of two among the knobs is a size for every dimension. A knob named after a dimension (``TILE_M``
    for ``M``) is a further size of this dimension. `reduced` may keep only the remainder by the smallest size, to limit
    the work.
    """
    whole = {knob: value for knob, value in configuration.items() if isinstance(value, int) and value > 0}
    powers = {knob: value for knob, value in whole.items() if value is not True and value & (value - 1) == 0}
    largest = max([LEAST_MODULUS, *powers.values()])
    by_name = {}
    for name in shape_dims(task, dims):
        own = [tile for knob, tile in powers.items() if re.fullmatch(rf"[A-Z]+_{name}", knob)]
        sizes = {largest, *(max(LEAST_MODULUS, tile) for tile in own)}
        by_name[name] = Moduli(tuple(sorted(sizes, reverse=True)), not own and name in task.independent)
    return by_name


def shape_dims(task: Task, dims: Dims) -> tuple[str, ...]:
    """Returns the integer dimensions that occur in the tensors' shapes."""
    entries = [str(entry) for tensor in task.tensors.values() for entry in tensor.shape]
    words = {word for entry in entries for word in re.findall(r"[A-Za-z_]\w*", entry)}
    whole = (name for name, value in dims.items() if isinstance(value, int) and not isinstance(value, bool))
    return tuple(name for name in whole if name in words)


def extent(dims: Dims, name: str) -> int:
    value = dims[name]
    assert isinstance(value, int)
    return value


def reduced(task: Task, dims: Dims, tiles: Tiles, limit: Limit = ONE_RUN, most: int = 2) -> dict[str, Value]:
    """Reduces the dimensions to at most ``most`` whole tiles each, with the same remainders.

    A dimension keeps its remainders by all of its `moduli`, or only by the smaller ones if the work is too much. A free
    dimension may be reduced to 2 or 1. If the task supports no shape within ``limit``, twice as many tiles are tried,
    four times as many and so on: a task may support only multiples of a number that no knob has. If this does not help,
    either, the result is the smallest shape that was tried and that the task supports.
    """
    few = {name: _sizes(extent(dims, name), tiles[name], most) for name in tiles}
    found, is_small = _reduced(task, dims, tiles, limit, few)
    if is_small:
        return found
    more = {name: sorted({*few[name], *_doubled(extent(dims, name), tiles[name])}, reverse=True) for name in tiles}
    return _reduced(task, dims, tiles, limit, more)[0]


def _reduced(
    task: Task, dims: Dims, tiles: Tiles, limit: Limit, choices: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Value], bool]:
    """Returns the first shape within the limit that the task supports, or the last one it supports; and whether it is
    within the limit. ``choices``: the sizes of each dimension, which are tried from the first to the last."""
    chosen = dict.fromkeys(choices, 0)

    def now() -> dict[str, Value]:
        return {**dims, **{name: sizes[chosen[name]] for name, sizes in choices.items()}}

    served = dict(dims)
    while True:
        here = now()
        if task.promises(here):
            served = here
            if limit.allows(task, here):
                return served, True
        left = [name for name, sizes in choices.items() if chosen[name] + 1 < len(sizes)]
        if not left:
            return served, False
        following = {name: choices[name][chosen[name] + 1] for name in left}
        chosen[max(left, key=partial(_readiness, tiles, here, following))] += 1


def _readiness(tiles: Tiles, dims: Dims, following: Mapping[str, int], name: str) -> tuple[bool, bool, float]:
    """Returns the sort key of a dimension. The dimension with the largest key is reduced next.

    The order is: free dimensions, dimensions that keep two tiles, other dimensions.
    """
    least = tiles[name].least
    return tiles[name].free, following[name] // least >= 2, extent(dims, name) / following[name]


def _sizes(value: int, tiles: Moduli, most: int) -> list[int]:
    sizes = {value % tile + tile * count for tile in tiles.sizes for count in range(1, most + 1)}
    sizes = {size for size in sizes if size < value}
    if tiles.free:
        sizes = (sizes if value >= tiles.least else set[int]()) | {small for small in (2, 1) if small <= value}
    return sorted(sizes or {value}, reverse=True)


def _doubled(value: int, tiles: Moduli) -> Iterator[int]:
    """Yields the sizes below ``value`` with the same remainder and 1, 2, 4, 8 … tiles."""
    tile = tiles.least
    while value % tiles.least + tile < value:
        yield value % tiles.least + tile
        tile *= 2


def edges(task: Task, dims: Dims, tiles: Tiles, limit: Limit = ONE_RUN) -> Iterator[dict[str, Value]]:
    """Yields shapes with one dimension set to 1, to the tile size ± 1, or to a prime.

    If the task supports none of these sizes except 1, the dimension is set to half the tile and to twice the tile.
    """
    for name, size in tiles.items():
        ragged, even = (size.least - 1, size.least + 1, *PRIMES), (size.least // 2, size.least * 2)
        for values in ((1,), ragged, even):
            changes = [{**dims, name: value} for value in dict.fromkeys(values) if value != dims[name]]
            served = [changed for changed in changes if _possible(task, changed, limit)]
            yield from served
            if served and values is ragged:
                break


def many_tiles(
    task: Task, dims: Dims, tiles: Tiles, rng: np.random.Generator, limit: Limit = ONE_RUN
) -> Iterator[dict[str, Value]]:
    """Yields shapes with one dimension of 9 to 17 tiles. Such shapes detect loops and grids that stop early."""
    for name, size in tiles.items():
        extent = int(rng.integers(*MANY_TILES)) * size.least + int(dims[name]) % size.least  # type: ignore[arg-type]
        if _possible(task, changed := {**dims, name: extent}, limit):
            yield changed


def deep(task: Task, dims: Dims, tiles: Tiles, name: str) -> dict[str, Value] | None:
    """Reduces all dimensions except ``name``; independent dimensions may be reduced to 1.

    ``name`` keeps its extent, or is halved until the run is within `DEEP`. Returns None if this dimension then has at
    most two tiles.
    """
    own = extent(dims, name)
    others = {other: Moduli(size.sizes, other in task.independent) for other, size in tiles.items() if other != name}
    while own > 2 * tiles[name].least:
        changed = reduced(task, {**dims, name: own}, others, DEEP, most=1)
        if _possible(task, changed, DEEP):
            return changed
        own //= 2
    return None


def hidden(
    task: Task, dims: Dims, tiles: Tiles, rng: np.random.Generator, limit: Limit = ONE_RUN
) -> Iterator[dict[str, Value]]:
    """Yields up to `HIDDEN` random shapes that the task supports, with extents up to a little over two tiles."""
    count = 0
    for _ in range(40 * HIDDEN):
        drawn = {name: int(rng.integers(1, 2 * size.least + 8)) for name, size in tiles.items()}
        keep = rng.random(len(tiles)) < 0.5  # random extents are rarely powers of two, but some dimensions must be
        changed = {**dims, **{name: value for (name, value), kept in zip(drawn.items(), keep, strict=True) if not kept}}
        if changed != dict(dims) and _possible(task, changed, limit):
            yield changed
            count += 1
        if count == HIDDEN:
            return


def _possible(task: Task, dims: dict[str, Value], limit: Limit) -> bool:
    return task.promises(dims) and limit.allows(task, dims)


def halved(task: Task, dims: Dims, names: Iterable[str]) -> Iterator[dict[str, Value]]:
    for name in names:
        value = dims[name]
        if isinstance(value, int) and value > 1:
            changed = {**dims, name: value // 2}
            if task.promises(changed):
                yield changed
