"""Buckets: groups of shapes that share a winner, if the author declares them.

A kernel that gets a new length at every call cannot be tuned for each length. A bucket rounds the extents in the key.
The key still says whether an extent is a multiple of 16, because that changes the compiled code. With `powers_of_two`,
shapes of one bucket differ by up to 2×. So when a bucket's winner is first needed for another exact shape, it is
verified and raced against the shipped configuration on that shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tilewright.records import Json
from tilewright.runtime.store.config_file import is_array_part
from tilewright.task.tensors import row_major

Rounded: TypeAlias = Callable[[int], int]
Bucket: TypeAlias = Rounded | Sequence[Rounded | None]
"""A function for every extent of an array or for a number, or one function per axis, with None for an exact extent."""

DIVISOR = 16


def powers_of_two(extent: int) -> int:
    """Rounds ``extent`` up to a power of two."""
    return 1 << max(0, extent - 1).bit_length()


def bucketed(part: Json, bucket: Bucket) -> Json:
    """Rounds the extents in a part of a key (an array or an integer). Returns any other part unchanged."""
    if isinstance(part, int) and not isinstance(part, bool) and callable(bucket):
        return _extent(part, bucket)
    if not is_array_part(part):
        return part
    shape, strides = part["shape"], part["strides"]
    each = [bucket] * len(shape) if callable(bucket) else [*bucket, *[None] * len(shape)]
    rounded: list[Json] = [_extent(extent, how) for extent, how in zip(shape, each, strict=False)]
    shown: Json = "row-major" if tuple(strides) == row_major(shape) else [*strides]
    return {"dtype": part["dtype"], "alignment": part["alignment"], "bucket": rounded, "strides": shown}


def _extent(extent: int, how: Rounded | None) -> Json:
    if how is None:
        return extent
    return {"up_to": int(how(extent)), "whole_sixteenths": extent % DIVISOR == 0}
