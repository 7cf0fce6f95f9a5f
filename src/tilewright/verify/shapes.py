"""The dimensions that a check runs on: reduced ones, edges, hidden draws.

Mistakes of shape show at the last tile. So a dimension shrinks to one or two tiles and the same remainder. All shapes
are ones that the task promises to serve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.records import Configuration, Value
from tilewright.task.task import Task
from tilewright.task.tensors import Dims

LEAST_MODULUS = 16
"""A launch specialises on extents that are divisible by 16."""
WORK_FLOP = 2e7
"""Of a reduced workload: a fraction of a second for the interpreter on one core."""
WORK_ELEMENTS = 1 << 17
"""Of all tensors of a reduced workload together."""
PRIMES = (7, 61)
HIDDEN = 3
"""Draws of hidden shapes for each configuration."""


@dataclass(frozen=True)
class Limit:
    """What one run may cost."""

    flop: float = WORK_FLOP
    elements: int = WORK_ELEMENTS

    def allows(self, task: Task, dims: Dims) -> bool:
        elements = sum(math.prod(array.shape) for array in task.arrays(dims).values())
        return elements <= self.elements and task.work(dims) <= self.flop


ONE_RUN = Limit()


@dataclass(frozen=True)
class Moduli:
    """The sizes whose remainders matter for one dimension, the largest first."""

    sizes: tuple[int, ...]
    free: bool
    """No knob bears the dimension's name, and the outputs are independent along it."""

    @property
    def least(self) -> int:
        return self.sizes[-1]


def moduli(task: Task, configuration: Configuration, dims: Dims) -> dict[str, Moduli]:
    """For each dimension of a shape its `Moduli`.

    The largest power of two among the knobs serves every dimension; where a knob bears the dimension's
    name (``TILE_M`` for ``M``), so does that one, and it alone where the work is too much otherwise.
    """
    whole = {knob: value for knob, value in configuration.items() if isinstance(value, int) and value > 0}
    powers = {knob: value for knob, value in whole.items() if value is not True and value & (value - 1) == 0}
    largest = max([LEAST_MODULUS, *powers.values()])
    found = {}
    for name in shape_dims(task, dims):
        own = [tile for knob, tile in powers.items() if re.fullmatch(rf"[A-Z]+_{name}", knob)]
        sizes = {largest, *(max(LEAST_MODULUS, tile) for tile in own)}
        found[name] = Moduli(tuple(sorted(sizes, reverse=True)), not own and name in task.independent)
    return found


def shape_dims(task: Task, dims: Dims) -> tuple[str, ...]:
    """The whole-number dimensions that extents of tensors are made of."""
    entries = [str(entry) for tensor in task.tensors.values() for entry in tensor.shape]
    words = {word for entry in entries for word in re.findall(r"[A-Za-z_]\w*", entry)}
    whole = (name for name, value in dims.items() if isinstance(value, int) and not isinstance(value, bool))
    return tuple(name for name in whole if name in words)


def extent(dims: Dims, name: str) -> int:
    """The value of a dimension that is a whole number."""
    value = dims[name]
    assert isinstance(value, int)
    return value


def reduced(
    task: Task, dims: Dims, tiles: Mapping[str, Moduli], limit: Limit = ONE_RUN, most: int = 2
) -> dict[str, Value]:
    """Smaller dimensions with the same remainders, at most ``most`` whole tiles each.

    A dimension keeps its remainder by each of its `moduli`, or by the smaller of them where that is too
    much work. One along which the outputs are independent, and which has no tile of its own, may shrink
    to 2 or 1. Where the task serves nothing that small, the last on the way there that it serves.
    """
    choices = {name: _sizes(extent(dims, name), tiles[name], most) for name in tiles}
    chosen = dict.fromkeys(choices, 0)

    def now() -> dict[str, Value]:
        return {**dims, **{name: sizes[chosen[name]] for name, sizes in choices.items()}}

    served = dict(dims)
    while True:
        here = now()
        if task.promises(here):
            served = here
            if limit.allows(task, here):
                return served
        left = [name for name, sizes in choices.items() if chosen[name] + 1 < len(sizes)]
        if not left:
            return served
        following = {name: choices[name][chosen[name] + 1] for name in left}
        chosen[max(left, key=partial(_readiness, tiles, here, following))] += 1


def _readiness(
    tiles: Mapping[str, Moduli], dims: Dims, following: Mapping[str, int], name: str
) -> tuple[bool, bool, float]:
    """The order in which dimensions shrink: free ones first, then those that keep two tiles."""
    least = tiles[name].least
    return tiles[name].free, following[name] // least >= 2, extent(dims, name) / following[name]


def _sizes(value: int, tiles: Moduli, most: int) -> list[int]:
    """What a dimension may become, the largest first."""
    sizes = {value % tile + tile * count for tile in tiles.sizes for count in range(1, most + 1)}
    sizes = {size for size in sizes if size < value}
    if tiles.free:
        sizes = (sizes if value >= tiles.least else set[int]()) | {small for small in (2, 1) if small <= value}
    return sorted(sizes or {value}, reverse=True)


def edges(task: Task, dims: Dims, tiles: Mapping[str, Moduli], limit: Limit = ONE_RUN) -> Iterator[dict[str, Value]]:
    """One dimension at a time at 1, about its tile, and a prime, the others as in ``dims``; where the task
    serves none of these, at half and twice its tile."""
    for name, size in tiles.items():
        ragged, even = (size.least - 1, size.least + 1, *PRIMES), (size.least // 2, size.least * 2)
        for values in ((1,), ragged, even):
            found = [{**dims, name: value} for value in dict.fromkeys(values) if value != dims[name]]
            found = [changed for changed in found if _possible(task, changed, limit)]
            yield from found
            if found and values is ragged:
                break


def hidden(
    task: Task, dims: Dims, tiles: Mapping[str, Moduli], rng: np.random.Generator, limit: Limit = ONE_RUN
) -> Iterator[dict[str, Value]]:
    """Random extents, up to somewhat more than two tiles; up to `HIDDEN` that the task serves."""
    found = 0
    for _ in range(40 * HIDDEN):
        drawn = {name: int(rng.integers(1, 2 * size.least + 8)) for name, size in tiles.items()}
        keep = rng.random(len(tiles)) < 0.5  # a dimension that must be a power of two rarely is by chance
        changed = {**dims, **{name: value for (name, value), kept in zip(drawn.items(), keep, strict=True) if not kept}}
        if changed != dict(dims) and _possible(task, changed, limit):
            yield changed
            found += 1
        if found == HIDDEN:
            return


def _possible(task: Task, dims: dict[str, Value], limit: Limit) -> bool:
    return task.promises(dims) and limit.allows(task, dims)


def halved(task: Task, dims: Dims, names: Iterable[str]) -> Iterator[dict[str, Value]]:
    """Each dimension at half its size, for a failure that may show on less."""
    for name in names:
        value = dims[name]
        if isinstance(value, int) and value > 1:
            changed = {**dims, name: value // 2}
            if task.promises(changed):
                yield changed
