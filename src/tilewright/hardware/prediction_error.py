"""How far predictions are off: every predicted time or speed-up that is printed takes its error from here.

An *error factor* is exp(mean |log(predicted / measured)|): how far off a prediction typically is, either way. Many
are further off. The *margin* of a kind of change is the predicted difference beyond which the predicted
order of two versions was right in 9 of 10 pairs. Both come from kernels on which the coefficients were not fitted,
recorded on an H200 (`python bench/fit_predictions.py`, bench/recorded/README.md). docs/predictions.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ChangeKind: TypeAlias = Literal["hints", "tiles", "form"]
"""``hints``: to the compiler alone. ``tiles``: tile sizes and other constants, maybe with hints. ``form``: the code."""


@dataclass(frozen=True)
class KindError:
    """The errors of predicted differences between two versions. ``margin``: None if no prediction suffices."""

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
    """Returns the note below predicted times."""
    return f"predicted times: typical error a factor of {TIME_FACTOR:g} on an H200 (docs/predictions.md)"


def speedup(ratio: float, kind: ChangeKind = "tiles") -> str:
    """Writes ``1.80× (typical error: a factor of 1.25)``, for a predicted time before over that after."""
    return f"{ratio:.2f}× ({typical(kind)})"


def typical(kind: ChangeKind = "tiles") -> str:
    return f"typical error: a factor of {KINDS[kind].factor:g}"
