"""The errors of predictions. Every printed prediction of a time or a speed-up takes its error from this module.

An *error factor* is exp(mean |log(predicted / measured)|): the factor by which a prediction is typically too high or
too low. Many predictions have a larger error. The *margin* of a kind of change is a predicted difference between two
versions. In 9 of 10 pairs with a larger difference, the predicted order was right. Both numbers come from kernels that
were not used to fit the coefficients, recorded on an H200 (`python bench/fit_predictions.py`). bench/recorded/README.md
and docs/predictions.md explain the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ChangeKind: TypeAlias = Literal["hints", "tiles", "form"]
"""The kind of a change. ``hints``: only hints to the compiler. ``tiles``: tile sizes and other constants, perhaps with
hints. ``form``: the structure of the code."""


@dataclass(frozen=True)
class KindError:
    """The errors of predicted differences between two versions, for one kind of change.

    margin: if the predicted difference is larger than this, the predicted order is reliable. None if there is no such
        margin.
    """

    words: str
    factor: float
    margin: float | None


TIME_FACTOR = 1.35
"""The error factor of predicted times."""
KINDS: dict[ChangeKind, KindError] = {
    "hints": KindError("a change of hints", 1.33, 0.95),
    "tiles": KindError("a change of tile sizes", 1.35, 0.20),
    "form": KindError("a change of the code's form", 2.0, None),
}


def times() -> str:
    """Returns the note about the typical error that is printed below predicted times."""
    return f"predicted times: typical error a factor of {TIME_FACTOR:g} on an H200 (docs/predictions.md)"


def speedup(ratio: float, kind: ChangeKind = "tiles") -> str:
    """Returns a string such as ``1.80× (typical error: a factor of 1.25)``. ``ratio``: the predicted time before the
    change / the predicted time after it."""
    return f"{ratio:.2f}× ({typical(kind)})"


def typical(kind: ChangeKind = "tiles") -> str:
    return f"typical error: a factor of {KINDS[kind].factor:g}"
