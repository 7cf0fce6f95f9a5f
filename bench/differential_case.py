"""What a case of `differential` is, and what its groups share: inputs, and bounds of products."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from differential_classes import EXACT, Array, Inputs, Within, order

Oracle = Callable[[Inputs], Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """A launch: ``arguments`` name tensors or are numbers; ``tensors`` hold what stands in memory before it."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    tensors: Mapping[str, Array] = field(repr=False)
    outputs: tuple[str, ...] = ("out",)
    within: Within = EXACT
    oracle: Oracle | None = None
    layouts: Mapping[str, str] = field(default_factory=dict)


Cases = Iterator[Case]


def renamed(case: Case, name: str, oracle: Oracle | None = None) -> Case:
    return replace(case, name=name, oracle=oracle or case.oracle)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def random_for(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def patterns(rng: np.random.Generator, dtype: Any, size: int) -> Array:
    """Any bits: infinities, NaN, subnormal numbers, every exponent."""
    dtype = np.dtype(dtype)
    return rng.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype)


def mixed(rng: np.random.Generator, dtype: Any, size: int) -> Array:
    """Any bits and, in every other place, numbers near 1; for integers any."""
    values = patterns(rng, dtype, size).copy()
    if np.dtype(dtype).kind not in "iu":
        values[::2] = rng.normal(size=size).astype(dtype)[::2]
        special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
        values[: len(special) : 1] = special.astype(dtype)[:size]
    return values


def normal(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    return rng.normal(size=shape).astype(dtype)


def whole(rng: np.random.Generator, dtype: Any, *shape: int, low: int = -4, high: int = 5) -> Array:
    """Small integers, of whichever dtype."""
    return rng.integers(low, high, shape).astype(dtype)


# Shared ---------------------------------------------------------------------------------------------------


def padded_rows(x: Array, rows: int, columns: int) -> Array:
    """With zeros up to whole tiles of ``rows`` × ``columns``."""
    return np.pad(x, ((0, -x.shape[0] % rows), (0, -x.shape[1] % columns)))


def to_tf32(x: Array) -> Array:
    """Rounded to 10 explicit bits of significand, ties to even; infinities and NaN stay."""
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint64(0x1FFF)).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


FLOAT_SUM, FP8_SUM, DOUBLE_SUM = 2.0**-23, 2.0**-13, 2.0**-53
"""Unit of an accumulation. A tensor core cuts the terms of a step at 24 bits and does not round; Hopper's
keep 13 bits behind the point for fp8."""


def product_bound(unit: float) -> Within:
    """(K + 2)·u·Σ|a·b|: K terms and the sum so far, each off by at most u of what they add up to."""

    def bounds(given: Inputs) -> Mapping[str, Array]:
        a, b = (np.abs(given[one].astype(np.float64)) for one in ("a", "b"))
        return {"c": (a.shape[-1] + 2) * unit * (a @ b)}

    return order(bounds)


def product_of(given: Inputs) -> Mapping[str, Any]:
    wide = np.float64 if given["a"].dtype.kind not in "iu" else np.int64
    return {"c": given["a"].astype(wide) @ given["b"].astype(wide)}
