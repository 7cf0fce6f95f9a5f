"""Reads the integer arrays of a captured launch.

A number in an integer array may be an index, a length or an offset, so a changed number may be out of range. Numbers
that never decrease are taken as offsets of consecutive sequences. The differences between them are the lengths.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.runtime.capture.described import WHOLE, Argument, DescribedLaunch, unpacked

LARGEST_STEP = 128
"""The largest step of sequence lengths in a task file. A larger common divisor counts as a coincidence."""
WRITTEN_OUT = 256
"""A task file lists the captured numbers of an array, as values to draw from, only up to this count."""


@dataclass(frozen=True)
class IndexArray:
    """An array of offsets that never decrease.

    starts: whether the first number is 0.
    step, least, most: the differences between neighbours are multiples of ``step``, from ``least`` to ``most``.
    """

    name: str
    numbers: tuple[int, ...]
    starts: bool
    step: int
    least: int
    most: int

    def text(self, last: str | int) -> str:
        """Returns the `tw.offsets(…)` of a task file. last: the last number, or an expression of dimensions for it."""
        starts = "" if self.starts else ", starts=False"
        steps = f"step={self.step}, least={self.least}, most={self.most}"
        return f"tw.offsets({last!r}{starts}, {steps}{_like(self.numbers)})"


def index_arrays(launch: DescribedLaunch) -> dict[str, IndexArray]:
    return {array.name: array for array in map(_index_array, launch.arrays()) if array is not None}


def contents(argument: Argument) -> tuple[int, ...]:
    """Returns the captured numbers of an integer array, row-major; empty if unknown, and for other arrays."""
    if argument.contents is None or not argument.spec.dtype.startswith(WHOLE):
        return ()
    return tuple(int(number) for number in unpacked(argument.contents, argument.spec).reshape(-1))


def similar_numbers(numbers: tuple[int, ...], bound: str | int) -> str:
    """Returns the `tw.integers(…)` of a task file for numbers like the captured numbers, all less than ``bound``. If
    ``bound`` is an expression of dimensions, the lower bound is at most 1."""
    if isinstance(bound, int):
        return f"tw.integers({min(numbers)}, {bound}{_like(numbers) if len(set(numbers)) > 1 else ''})"
    return f"tw.integers({min(1, *numbers)}, {bound!r}{_like(numbers)})"


def _like(numbers: tuple[int, ...]) -> str:
    return f", like={numbers!r}" if len(numbers) <= WRITTEN_OUT else ""


def last_number(array: IndexArray, extents: Mapping[int, str]) -> str | int:
    """Returns the last number of an index array. If the number is an extent, or an extent minus 1, returns an
    expression of dimensions.

    extents: maps an extent to the name of its dimension.
    """
    last = array.numbers[-1]
    is_index = array.most <= 1 or last not in extents
    return f"{extents[last + 1]} - 1" if is_index and last + 1 in extents else extents.get(last, last)


def _index_array(argument: Argument) -> IndexArray | None:
    numbers = contents(argument)
    if not numbers or argument.spec.ndim != 1 or min(numbers) < 0:
        return None
    steps = [after - before for before, after in itertools.pairwise(numbers)]
    starts = numbers[0] == 0
    if not steps or min(steps) < 0 or numbers[0] == numbers[-1] or (len(numbers) == 2 and not starts):
        return None
    steps += [] if starts else [numbers[0]]
    divisor = math.gcd(*steps)
    step = min(divisor & -divisor, LARGEST_STEP)
    return IndexArray(argument.name, numbers, starts, step, step if min(steps) else 0, max(steps))
