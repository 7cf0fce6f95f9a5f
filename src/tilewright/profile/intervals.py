"""Arithmetic on sets of times: unions, differences and gaps of intervals in whole nanoseconds.

A set is a sorted array of shape (n, 2): starts and ends of disjoint intervals. An interval contains its start but not
its end. `union` makes a set from any intervals.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = "NDArray[np.int64]"

EMPTY: Times = np.empty((0, 2), np.int64)


def union(starts: Times, ends: Times) -> Times:
    """Returns the set of all times in the intervals. Intervals that touch are merged; empty ones are left out."""
    some = ends > starts
    order = np.argsort(starts[some], kind="stable")
    starts, ends = starts[some][order], ends[some][order]
    if not len(starts):
        return EMPTY
    reach = np.maximum.accumulate(ends)
    new = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(new)[1:] - 1, [len(starts) - 1]))
    return np.stack((starts[new], reach[last]), axis=1)


def both(one: Times, other: Times) -> Times:
    """Returns the union of two sets."""
    whole = np.concatenate((one, other))
    return union(whole[:, 0], whole[:, 1])


def without(one: Times, other: Times) -> Times:
    """Returns the times that are in ``one`` but not in ``other``."""
    if not len(one) or not len(other):
        return one
    low, high = min(one[0, 0], other[0, 0]), max(one[-1, 1], other[-1, 1])
    return common(one, gaps(other, int(low), int(high)))


def common(one: Times, other: Times) -> Times:
    """Returns the intersection of two sets."""
    first = np.searchsorted(other[:, 1], one[:, 0], "right")
    behind = np.searchsorted(other[:, 0], one[:, 1], "left")
    counts = np.maximum(behind - first, 0)
    which = np.repeat(np.arange(len(one)), counts)
    offset = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    partner = first[which] + offset
    starts = np.maximum(one[which, 0], other[partner, 0])
    ends = np.minimum(one[which, 1], other[partner, 1])
    return np.stack((starts, ends), axis=1)


def gaps(times: Times, start: int, end: int) -> Times:
    """Returns the times from ``start`` to ``end`` that are not in ``times``. No time may lie outside this range."""
    starts = np.concatenate(([start], times[:, 1]))
    ends = np.concatenate((times[:, 0], [end]))
    some = ends > starts
    return np.stack((starts[some], ends[some]), axis=1).astype(np.int64)


def total(times: Times) -> int:
    """Returns the total length of a set in nanoseconds."""
    return int((times[:, 1] - times[:, 0]).sum())
