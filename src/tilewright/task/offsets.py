"""Offsets: whole numbers that rise, which say where sequences of different lengths lie, one after another.

A kernel is told the lengths: the steps between the offsets. So offsets are drawn as steps of a given sum. Numbers drawn
each on its own would not rise, and a kernel would read anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.errors import TaskError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]

ORDERS: Mapping[str, str] = {"large": "first", "tiny": "last", "mixed signs": "any", "constant rows": "even"}
"""Kind of hostile data → which steps are as long as they may be; all others are drawn."""


@dataclass(frozen=True)
class OffsetSteps:
    """What is known of offsets besides the last number; see `tensors.offsets`."""

    starts: bool = True
    step: int = 1
    least: int = 0
    most: int | None = None

    def possible(self, shape: tuple[int, ...], last: int) -> bool:
        """Whether there are such offsets."""
        return self._room(shape, last) is not None

    def drawn(self, shape: tuple[int, ...], last: int, rng: np.random.Generator, kind: str = "declared") -> Array:
        """One row of offsets for each row of ``shape``. Raises TaskError where there are none."""
        import numpy as np

        room = self._room(shape, last)
        if room is None:
            raise TaskError(f"no {shape[-1] if shape else 0} offsets rise to {last} as declared: {self}")
        rows = shape[:-1]
        count, units, cap = room
        steps = np.stack([_steps(count, units, cap, ORDERS.get(kind, ""), rng) for _ in range(int(np.prod(rows)))])
        ends = np.cumsum(self.least + self.step * steps, axis=-1)
        if self.starts:
            ends = np.pad(ends, ((0, 0), (1, 0)))
        return ends.reshape(shape)

    def _room(self, shape: tuple[int, ...], last: int) -> tuple[int, int, int] | None:
        """The number of steps, the multiples of ``step`` beyond the least that they share, and the most that a step may
        get; None where no such offsets exist."""
        count = (shape[-1] if shape else 0) - self.starts
        if count < 1 or (beyond := last - count * self.least) < 0 or beyond % self.step:
            return None
        units = beyond // self.step
        cap = units if self.most is None else (self.most - self.least) // self.step
        return (count, units, cap) if units <= count * cap else None


def _steps(count: int, units: int, cap: int, order: str, rng: np.random.Generator) -> Array:
    """``units`` shared among ``count``, at most ``cap`` each."""
    import numpy as np

    if order == "even":
        return units // count + (np.arange(count) < units % count)
    if order:
        before = np.minimum(np.arange(count + 1) * cap, units)
        longest = np.diff(before)
        return {"first": longest, "last": longest[::-1], "any": rng.permutation(longest)}[order]
    shared = rng.multinomial(units, rng.dirichlet(np.ones(count)))
    taken = np.minimum(shared, cap)
    return taken + rng.multivariate_hypergeometric(cap - taken, units - int(taken.sum()), method="marginals")
