"""How far the elements of an array lie apart, and how far they reach; both in elements."""

from __future__ import annotations

import math
from collections.abc import Sequence


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense array whose last axis is contiguous."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """From the first element to past the last; 0 without elements. ``strides`` are not negative."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
