"""Buckets: groups of shapes that share a winner. The author of a tuned kernel may declare them.

A kernel that gets a new length at every call cannot be tuned for each length. A bucket rounds the extents in the key.
The key still says whether an extent is a multiple of 16, because that changes the compiled code. With `powers_of_two`,
shapes of one bucket differ by up to 2×. So before a bucket's winner is launched on another shape, it is verified and
raced against the shipped configuration on that shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tilewright.records import Json
from tilewright.runtime.store.config_file import is_array_part
from tilewright.task.tensors import DIVISOR, row_major

Rounded: TypeAlias = Callable[[int], int]
Bucket: TypeAlias = Rounded | Sequence[Rounded | None]
"""One function for a number or for all extents of an array; or one function per axis, where None keeps the extent."""


def powers_of_two(extent: int) -> int:
    """Rounds ``extent`` up to a power of two."""
    return 1 << max(0, extent - 1).bit_length()


def bucketed(part: Json, bucket: Bucket) -> Json:
    """Returns a part of a key with rounded extents. A part that is neither array nor integer stays as it is."""
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
