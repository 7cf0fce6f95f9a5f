"""How near two results of one kernel must be, and how far apart they are in units of that.

- ``exact``: integers, and floats whose exact results are numbers of their type: every bit equal.
- ``rounding``: operations that round once, in a way the dialect fixes: every bit equal.
- ``ulps``: approximated functions. Bound: (n + 1) units in the last place of the interpreter's result,
  n from the CUDA Programming Guide's tables (maximum error of each function) and 1 for the interpreter's
  own rounding; with flush-to-zero at least the least normal number.
- ``order``: sums whose order is open. Bound: what the case computes from its data, n·u·Σ|terms|, and one
  unit in the last place of the result, where both round to the output's type.

NaN equals NaN, whatever its bits: a GPU has one NaN, NumPy keeps what came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]
Bounds = Callable[[Inputs], Mapping[str, Array]]


@dataclass(frozen=True)
class Within:
    """A class of comparison."""

    kind: str
    units: Any = 0
    """ulps: n, or an array of n that broadcasts (one per operation)."""
    least: float = 0.0
    """ulps: a bound that is not undercut."""
    bounds: Bounds | None = None
    """order: inputs → absolute bound by output."""


EXACT, ROUNDING = Within("exact"), Within("rounding")
LEAST_NORMAL = 2.0**-126


def ulps(*units: float, flushing: bool = False) -> Within:
    """``units``: one for all, or one for each row of the output."""
    n: Any = units[0] if len(units) == 1 else np.array(units)[:, None]
    return Within("ulps", n, LEAST_NORMAL if flushing else 0.0)


def order(bounds: Bounds) -> Within:
    return Within("order", bounds=bounds)


@dataclass(frozen=True)
class Difference:
    """``units``: the largest error in units of its bound; at most 1 is inside."""

    units: float
    equal: float
    """Share of elements whose bits are equal."""
    worst: str = ""

    @property
    def inside(self) -> bool:
        return self.units <= 1


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind not in "iub"


def unit_in_last_place(values: Array) -> Array:
    """Of each value in its own dtype; float64. Infinite and NaN values have none: 0."""
    facts = ml_dtypes.finfo(values.dtype)
    wide = np.abs(values.astype(np.float64))
    _, exponent = np.frexp(np.where(np.isfinite(wide), wide, 0))
    unit = np.ldexp(1.0, np.maximum(exponent - 1, facts.minexp) - facts.nmant)
    return np.where(np.isfinite(wide), unit, 0)


def equal_bits(got: Array, expected: Array) -> Array:
    """Element by element; NaN equals NaN."""
    integers = np.dtype(f"u{got.dtype.itemsize}")
    same = np.ascontiguousarray(got).view(integers) == np.ascontiguousarray(expected).view(integers)
    if is_float(got.dtype):
        with np.errstate(all="ignore"):  # converting a signalling NaN says so
            same |= np.isnan(got.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    return np.asarray(same).reshape(got.shape)


def bound_of(within: Within, name: str, expected: Array, inputs: Inputs) -> Array:
    """What each element may be off; zero where only equal bits will do."""
    if within.kind in ("exact", "rounding") or not is_float(expected.dtype):
        return np.zeros(expected.shape)
    if within.kind == "ulps":
        return np.maximum((within.units + 1) * unit_in_last_place(expected), within.least)
    assert within.bounds is not None
    return np.asarray(within.bounds(inputs)[name]) + unit_in_last_place(expected)


def difference(within: Within, name: str, got: Array, expected: Array, inputs: Inputs) -> Difference:
    """Of one output from what the interpreter computed (or, without a GPU, from what NumPy did)."""
    same = equal_bits(got, expected)
    if same.all():
        return Difference(0.0, 1.0)
    bound = np.broadcast_to(bound_of(within, name, expected, inputs), got.shape)
    with np.errstate(all="ignore"):
        apart = np.abs(got.astype(np.float64) - expected.astype(np.float64)) / bound
    units = np.where(same, 0.0, np.where(np.isnan(apart) | (bound == 0), np.inf, apart))
    at = tuple(int(one) for one in np.unravel_index(int(units.argmax()), units.shape))
    worst = f"{name}{list(at)}: {got[at]!s}, not {expected[at]!s}"
    return Difference(float(units.max()), float(same.mean()), worst)
