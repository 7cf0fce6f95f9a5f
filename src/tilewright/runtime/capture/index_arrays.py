"""Captured integer arrays, and the numbers that a task may draw instead of theirs.

A number may be an index, a length or an offset, so another number may be out of range. Numbers that rise are offsets
of sequences that lie one after another; their steps are the lengths.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.runtime.capture.described import WHOLE, Argument, DescribedLaunch, unpacked

WRITTEN_OUT = 256
"""The most numbers that a task file lists, to be drawn as they were."""
LARGEST_STEP = 128
"""The largest power of two that steps are assumed to be multiples of on purpose."""


@dataclass(frozen=True)
class IndexArray:
    """Numbers that rise. starts: the first is 0. The steps are multiples of ``step``, from ``least`` to ``most``."""

    name: str
    numbers: tuple[int, ...]
    starts: bool
    step: int
    least: int
    most: int

    @property
    def last(self) -> int:
        return self.numbers[-1]

    def text(self, last: str | int) -> str:
        """For a task file; ``last``: a number or an expression of dimensions."""
        starts = "" if self.starts else ", starts=False"
        steps = f"step={self.step}, least={self.least}, most={self.most}"
        return f"tw.offsets({last!r}{starts}, {steps}{_like(self.numbers)})"


def index_arrays(launch: DescribedLaunch) -> dict[str, IndexArray]:
    """The arrays whose numbers rise, by name."""
    every = map(_index_array, launch.arrays())
    return {array.name: array for array in every if array is not None}


def contents(argument: Argument) -> tuple[int, ...]:
    """The captured numbers, row by row; none for other arrays, and if they are not known."""
    if argument.contents is None or not argument.spec.dtype.startswith(WHOLE):
        return ()
    return tuple(int(number) for number in unpacked(argument.contents, argument.spec).reshape(-1))


def among(numbers: tuple[int, ...], beyond: str | int) -> str:
    """Similar numbers, for a task file: from the least one, or from 1 if ``beyond`` depends on the dimensions, to less
    than ``beyond``."""
    if isinstance(beyond, int):
        return f"tw.integers({min(numbers)}, {beyond}{_like(numbers) if len(set(numbers)) > 1 else ''})"
    return f"tw.integers({min(1, *numbers)}, {beyond!r}{_like(numbers)})"


def _like(numbers: tuple[int, ...]) -> str:
    return f", like={numbers!r}" if len(numbers) <= WRITTEN_OUT else ""


def last_number(array: IndexArray, extents: Mapping[int, str]) -> str | int:
    """The last number as an expression of dimensions (``extents``: their names), if it is an extent or an index of an
    axis; else the number."""
    is_index = array.most <= 1 or array.last not in extents
    if is_index and array.last + 1 in extents:
        return f"{extents[array.last + 1]} - 1"
    return extents.get(array.last, array.last)


def _index_array(argument: Argument) -> IndexArray | None:
    numbers = contents(argument)
    if not numbers or argument.spec.ndim != 1 or min(numbers) < 0:
        return None
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    starts = numbers[0] == 0
    if not steps or min(steps) < 0 or numbers[0] == numbers[-1] or (len(numbers) == 2 and not starts):
        return None
    steps += [] if starts else [numbers[0]]
    common = math.gcd(*steps)
    step = min(common & -common, LARGEST_STEP)
    least = step if min(steps) else 0
    return IndexArray(argument.name, numbers, starts, step, least, max(steps))
