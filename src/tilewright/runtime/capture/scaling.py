"""Guesses which numbers of a captured launch may change: its extents, and the numbers in its integer arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.runtime.capture import facts, index_arrays
from tilewright.runtime.capture.described import Argument, DescribedLaunch
from tilewright.runtime.capture.facts import CapturedLaunch, Row

MOST_KEPT = 3
"""The most extents that stay as captured while others change. A hundred guesses take some seconds."""


@dataclass(frozen=True)
class Scaling:
    """One guess: which extents and numbers of a launch may change.

    linked: whether a row that is twice as long as another row must stay twice as long.
    index_arrays: whether the lengths of integer arrays, and the axes that they index, may change too.
    any: if False, no extent may change.
    numbers: whether the numbers in integer arrays may change.
    kept: extents that stay as captured.
    quotients: whether integer arguments that are quotients of extents change with them.
    blocks: whether an array that has one element for each block of another array keeps doing so: the scales of a
        quantized array. A block's length is an argument.
    below: whether the numbers in an integer array are indices of the axis with the next larger extent. Of many numbers
        drawn below an extent, the largest is rarely the last index.
    """

    linked: bool = False
    index_arrays: bool = True
    any: bool = True
    numbers: bool = True
    kept: frozenset[int] = frozenset()
    quotients: bool = False
    blocks: bool = False
    below: bool = False


SCALINGS = (
    Scaling(blocks=True),
    Scaling(),
    Scaling(linked=True),
    Scaling(index_arrays=False),
    Scaling(linked=True, index_arrays=False),
)
"""The guesses in the order in which they are tried: arrays of blocks first, which few launches have, then the most
general."""
NOTHING = Scaling(any=False)


def scalings(launch: DescribedLaunch) -> tuple[Scaling, ...]:
    """Returns the guesses for a launch, in the order in which they are tried. The last one lets the fewest numbers
    change."""
    if not any(map(index_arrays.contents, launch.arrays())):
        return (*SCALINGS, *_keeping(launch, Scaling()), NOTHING)
    same_numbers = (replace(scaling, numbers=False) for scaling in SCALINGS if not scaling.index_arrays)
    some = (*_keeping(launch, Scaling(index_arrays=False)), *_only_of_the_grid(launch))
    return (*SCALINGS, Scaling(below=True), *some, *same_numbers, NOTHING, replace(NOTHING, numbers=False))


def _keeping(launch: DescribedLaunch, scaling: Scaling) -> Iterator[Scaling]:
    """Yields guesses in which no extent, then one, then two, then three stay as captured, the smallest first."""
    extents = {extent for array in launch.arrays() for extent in facts.declared_array(array.spec).shape if extent > 1}
    for count in range(min(MOST_KEPT, len(extents) - 1) + 1):
        for kept in sorted(itertools.combinations(sorted(extents), count), key=math.prod):
            for quotients in (True, False):
                yield replace(scaling, kept=frozenset(kept), quotients=quotients)


def _only_of_the_grid(launch: DescribedLaunch) -> Iterator[Scaling]:
    """Yields the guess in which only extents change that are an axis of the grid, such as the number of tokens."""
    extents = {extent for array in launch.arrays() for extent in facts.declared_array(array.spec).shape if extent > 1}
    if kept := extents - {*launch.grid}:
        yield Scaling(kept=frozenset(kept))


def only_rows_change(launch: DescribedLaunch, scaling: Scaling) -> bool:
    """Returns whether only lengths of rows change. Blocks mostly loop over a row, so the grid may stay as captured."""
    shapes = [facts.declared_array(array.spec).shape for array in launch.arrays()]
    rows = {shape[-1] for shape in shapes if len(shape) > 1}
    others = {extent for shape in shapes for extent in (shape[:-1] if len(shape) > 1 else shape) if extent > 1}
    return bool(scaling.kept) and others <= scaling.kept and not rows <= scaling.kept


def readings(captured: CapturedLaunch) -> Iterator[CapturedLaunch]:
    """Yields the launch as captured, and then, if an array's rows are as long as another of its axes, the launch with
    these row lengths as dimensions of their own (`Row`): in arrays with several axes, and also in vectors. At the end,
    the launch with extents that are products with an axis of the grid (`facts.merged_extents`)."""
    yield captured
    shapes = [array.spec.shape for array in captured.launch.arrays()]
    twice = {shape[-1] for shape in shapes if shape and shape[-1] > 1 and shape[-1] in shape[:-1]}
    before = captured.launch
    for least in (2, 1) if twice else ():

        def with_rows(array: Argument, least: int = least) -> Argument:
            spec = array.spec
            if spec.ndim < least:
                return array
            places = zip(spec.shape, spec.strides, strict=True)
            shape = tuple(Row(extent) if extent in twice and stride == 1 else extent for extent, stride in places)
            return replace(array, array=replace(spec, shape=shape))

        launch = captured.launch.with_arrays(with_rows)
        if launch != before:
            yield replace(captured, launch=launch)
        before = launch
    if merged := facts.merged_extents(captured.launch):
        yield replace(captured, products={**merged, **captured.products})


def guesses(captured: CapturedLaunch) -> list[tuple[CapturedLaunch, Scaling]]:
    """Returns all guesses about a launch, the most general first: how its axes are read, and what may change."""
    every = [(reading, scaling) for reading in readings(captured) for scaling in scalings(reading.launch)]
    return sorted(every, key=lambda guess: (not guess[1].any, not guess[1].numbers, len(guess[1].kept)))
