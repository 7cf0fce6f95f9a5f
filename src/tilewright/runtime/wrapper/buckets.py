"""Buckets: shapes that share a winner, where the author says that they may.

Kernels that see a new length at every call cannot be tuned for each. A bucket maps an extent to the one that
stands for it; what divides it by 16 stays in the key, because ragged extents compile to other code. The first
time a bucket's winner meets another exact shape, it is verified and raced against the shipped
configuration on that shape (X-22: a rounded key merges shapes that differ by up to 2×).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tilewright.task.strides import row_major

Rounded: TypeAlias = Callable[[int], int]
Bucket: TypeAlias = Rounded | Sequence[Rounded | None]
"""For each extent of an array, or for the number itself; a sequence has one a axis, None where exact."""

DIVISOR = 16


def powers_of_two(extent: int) -> int:
    """The least power of two that is not below ``extent``."""
    return 1 << max(0, extent - 1).bit_length()


def bucketed(parts: Mapping[str, Any], buckets: Mapping[str, Bucket]) -> dict[str, Any]:
    """The parts of a key with the arguments in ``buckets`` rounded; ``arrays`` and ``flags`` change."""
    arrays = {name: _array(part, buckets[name]) if name in buckets else part for name, part in parts["arrays"].items()}
    flags = {name: _flag(value, buckets[name]) if name in buckets else value for name, value in parts["flags"].items()}
    return {**parts, "arrays": arrays, "flags": flags}


def _array(part: Any, bucket: Bucket) -> Any:
    if not isinstance(part, Mapping):
        return part
    shape = part["shape"]
    each = [bucket] * len(shape) if callable(bucket) else list(bucket)
    if len(each) != len(shape):
        each = (each + [None] * len(shape))[: len(shape)]
    rounded = [_extent(extent, how) for extent, how in zip(shape, each, strict=True)]
    dense = tuple(part["strides"]) == row_major(shape)  # its strides are a list, as in all of a key
    strides = "row-major" if dense else part["strides"]
    others = {name: one for name, one in part.items() if name != "shape"}
    return {**others, "bucket": rounded, "strides": strides}


def _flag(value: Any, bucket: Bucket) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not callable(bucket):
        return value
    return _extent(value, bucket)


def _extent(extent: int, how: Rounded | None) -> Any:
    if how is None:
        return extent
    return {"up_to": int(how(extent)), "whole_sixteenths": extent % DIVISOR == 0}
