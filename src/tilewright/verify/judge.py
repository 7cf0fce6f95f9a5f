"""Judges a run of a kernel on any engine: its memory and its outputs.

A run begins on poisoned, guarded memory. After the run, these functions judge it in this order:

    judge_memory    was anything written outside the tensors? was an input changed?
    judge_finite    is every element finite? (an element that was not written still contains poison)
    judge_values    is each output near the expected values, relative to the output's scale?
    judge_whole     if `judge_values` saw only a slice: is every element finite, and near another implementation's?

Expected values come from the float64 reference (`reference.FloatReference`), or from a run of the shipped configuration
on the caller's tensors (`runtime.search.comparing_outputs`). Arrays are NumPy's or torch's (`arrays`). A mistake of
the kernel is raised as `Wrong`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.verify.arrays import HOST, Array, Arrays, NamedArrays
from tilewright.verify.tolerance import (
    FACTOR,
    Allowance,
    Error,
    error_of,
    growth_of_largest,
    negligible,
    share,
    surely_near,
)

EXACT = Allowance(0.0, 0.0, "small integers")


class Wrong(Exception):
    """The kernel is wrong. ``compared``: the wrong element, if an element shows the mistake."""

    def __init__(self, reason: str, compared: Compared | None = None) -> None:
        super().__init__(reason)
        self.compared = compared


class Unverified(Exception):
    """The run proves nothing about the kernel; the message says why."""


class RunMemory(Protocol):
    """The tensors of one run, with the guards around them."""

    def damaged(self) -> str | None:
        """Describes the first byte outside all tensors that was written; None if there is none."""

    def changed(self) -> str | None:
        """Returns the names of the inputs that were changed, although the task does not declare this; None if none."""


@dataclass(frozen=True)
class Wanted:
    """The expected values of one output, and the allowed error."""

    values: Array
    dtype: str
    allowed: Allowance
    trusted: float = 0.0  # the largest error of the implementation that sets the allowed error
    special: bool = False  # infinities and NaN are part of the expected values
    exact: Array | None = None  # mask of the elements that must be equal, for a task that maps integers to integers
    within: str = ""  # ``the slice`` if the values are only a slice of the output
    squares: float | None = None  # `tolerance.squares_of` the values, if it is known


@dataclass(frozen=True)
class Compared:
    """The worst element of one output. Fields that are also in `Wanted` have the same meaning."""

    output: str
    share: float  # error / allowed error; above 1 is incorrect
    error: Error
    allowed: Allowance
    trusted: float
    within: str = ""

    def __str__(self) -> str:
        beside = "must be exact" if self.allowed.worst == 0 else f"{self.share:.3g} × the allowed error"
        return f"{self.place} is {self.error.got:.6g}, should be {self.error.wanted:.6g}: {beside} ({self.allowed.why})"

    @property
    def place(self) -> str:
        """The element as a string, such as ``'y'[3, 5]``."""
        if self.within:
            return f"'{self.output}' at {self.error.index} of {self.within}"
        return f"'{self.output}'[{', '.join(map(str, self.error.index))}]"

    @property
    def verdict(self) -> str:
        """Describes the error of a correct output."""
        if self.allowed.worst == 0:
            return f"exact ({self.allowed.why})"
        norm = "" if self.error.worst >= self.share * self.allowed.worst else " by the norm of all elements"
        return f"{self.share:.0%} of the allowed error{norm}"


def judge_memory(memory: RunMemory) -> None:
    """Raises `Wrong` if the kernel wrote outside its tensors or changed an input."""
    if (place := memory.damaged()) is not None:
        raise Wrong(f"wrote outside {place}")
    if (inputs := memory.changed()) is not None:
        raise Wrong(f"changed its input {inputs}")


def judge_finite(name: str, out: Array, arrays: Arrays = HOST) -> None:
    """Raises `Wrong` if an element of an output is NaN or infinite."""
    if not arrays.everywhere(arrays.finite, out):
        raise Wrong(f"'{name}' is not finite everywhere, or not written")


def judge_values(wanted: Mapping[str, Wanted], outputs: NamedArrays, arrays: Arrays = HOST) -> Compared:
    """Returns the output with the largest share of its allowed error. Raises `Wrong` if the share is above 1."""
    worst = compared(wanted, outputs, arrays)
    if not worst.share <= 1:
        raise Wrong(str(worst), worst)
    return worst


def judge_whole(
    name: str, out: Array, other: Array, whose: str, wanted: Wanted, arrays: Arrays = HOST,
    squares: float | None = None,
) -> None:  # fmt: skip
    """Compares every element with ``other``, the output of the implementation called ``whose``.

    Raises `Wrong` if an element is not finite, or too far from the same element of ``other``. If ``other`` is ``out``
    itself, only the first is judged. squares: `tolerance.squares_of` ``other``, if it is known.

    Both outputs may have the allowed error, so their difference may be up to twice as large. The allowed error is that
    of the elements in ``wanted``; the largest error of all elements may be larger.
    """
    if out is other:
        judge_finite(name, out, arrays)
        return
    allowed = wanted.allowed.worst * growth_of_largest(wanted.values.size, math.prod(out.shape))
    bound = 2 * ((1 + 1 / FACTOR) * allowed + 1e-12)
    if surely_near(out, other, bound, arrays, squares=squares):
        return
    judge_finite(name, out, arrays)
    worst = error_of(out, other, arrays, negligible=negligible(wanted.dtype), squares=squares).worst
    if worst > bound:
        raise Wrong(f"outside the slices, '{name}' differs by {worst:.3g} from the output of {whose}")


def compared(wanted: Mapping[str, Wanted], outputs: NamedArrays, arrays: Arrays = HOST) -> Compared:
    every = (_compared(name, outputs[name], expected, arrays) for name, expected in wanted.items())
    return max(every, key=lambda output: math.inf if math.isnan(output.share) else output.share)


def _compared(name: str, out: Array, wanted: Wanted, arrays: Arrays) -> Compared:
    ref, allowed, limit = wanted.values, wanted.allowed, negligible(wanted.dtype)
    error = error_of(out, ref, arrays, negligible=limit, special=wanted.special, squares=wanted.squares)
    if wanted.exact is not None:
        exact = np.where(wanted.exact, arrays.host(out), ref)
        only = error_of(exact, ref, negligible=limit, special=wanted.special, squares=wanted.squares)
        if wanted.exact.all() or only.worst > 0:
            error, allowed = only, EXACT
    return Compared(name, share(error, allowed), error, allowed, wanted.trusted, wanted.within)


def differing(first: NamedArrays, second: NamedArrays) -> str | None:
    """Returns the name of the first output whose bits differ; None if all are equal."""
    return next((name for name in first if not np.array_equal(bits(first[name]), bits(second[name]))), None)


def bits(array: Array) -> Array:
    """Returns the elements as integers with the same bits, so that a NaN equals itself."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
