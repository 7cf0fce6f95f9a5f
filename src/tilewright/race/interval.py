"""The interval of a median, and the geometric mean. Ledgers and reports need no other statistics.

This module does not import NumPy, because that import takes as long as planning a tuning run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tilewright.records import Json


@dataclass(frozen=True)
class Interval:
    """Contains the true median with a probability of at least ``confidence``; (0, inf) if the samples are too few."""

    low: float
    centre: float  # the sample median
    high: float
    confidence: float
    n: int  # number of samples

    @property
    def decided(self) -> bool:
        """Whether ``n`` samples are enough for an interval with this confidence."""
        return math.isfinite(self.high)

    def __str__(self) -> str:
        return f"{self.low:.3f} to {self.high:.3f}" if self.decided else f"unknown from {self.n} samples"

    def to_json(self) -> dict[str, Json]:
        """Returns the fields. An infinite ``high`` becomes None, since JSON has no infinity."""
        return asdict(self) | {"high": self.high if self.decided else None}


def geometric_mean(values: Iterable[float]) -> float | None:
    """Returns the geometric mean of positive numbers; None if there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
