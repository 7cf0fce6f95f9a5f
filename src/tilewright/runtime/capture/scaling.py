"""Guesses which numbers of a captured launch may change: its extents, and the numbers in its integer arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.runtime.capture import facts
from tilewright.runtime.capture.described import DescribedLaunch


@dataclass(frozen=True)
class Scaling:
    """One guess: which extents and numbers of a launch may change.

    linked: whether a row that is twice as long as another row must stay twice as long.
    index_arrays: whether the lengths of integer arrays, and the axes that they index, may change too.
    any: if False, no extent may change.
    numbers: whether the numbers in integer arrays may change.
    """

    linked: bool = False
    index_arrays: bool = True
    any: bool = True
    numbers: bool = True


SCALINGS = (Scaling(), Scaling(linked=True), Scaling(index_arrays=False), Scaling(linked=True, index_arrays=False))
"""The guesses in the order in which they are tried, the most general first."""
NOTHING = Scaling(any=False)


def scalings(launch: DescribedLaunch) -> tuple[Scaling, ...]:
    """Returns the guesses for a launch, in the order in which they are tried. The last one lets the fewest numbers
    change."""
    if not any(map(facts.contents, launch.arrays())):
        return (*SCALINGS, NOTHING)
    same_numbers = (replace(scaling, numbers=False) for scaling in SCALINGS if not scaling.index_arrays)
    return (*SCALINGS, *same_numbers, NOTHING, replace(NOTHING, numbers=False))
