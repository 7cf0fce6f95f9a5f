"""What a search strategy is: a generator that yields configurations to try and receives what became of them.

    class Halving(Strategy):
        name = "halving"

        def search(self, space):
            outcomes = yield space.ranked[:8]
            ...

    STRATEGY = Halving()

A strategy does no I/O and touches no GPU. Put the file into this folder, or name it in the entry point group
``tilewright.strategies`` of your package; `tilewright.testing.strategies.StrategyContract` tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.records import Candidate, Configuration, PredictedTime

Batch: TypeAlias = tuple[Configuration, ...]
Outcomes: TypeAlias = tuple[Candidate, ...]
"""What became of a batch, in its order: verified, and raced where there is a GPU."""
Search: TypeAlias = Generator[Batch, Outcomes, None]


@dataclass(frozen=True)
class SearchSpace:
    """One workload's configurations after the screen."""

    ranked: Batch
    """Those worth trying, the shortest predicted time first. Duplicates and what cannot win are not in it."""
    predicted: Mapping[Configuration, PredictedTime]
    baseline: Configuration | None
    """The one shipped today, or the one that has the same machine code; None if it is not in ``ranked``."""
    top: int
    """How many the user asked for."""
    measured: bool
    """Outcomes have measured times; else verdicts of the interpreter only."""


class Strategy(ABC):
    """A search order. ``name`` is what it is chosen by."""

    name: str

    @abstractmethod
    def search(self, space: SearchSpace) -> Search:
        """Yields batches of ``space.ranked``, no configuration twice; receives each batch's outcomes."""


def batches(search: Search, outcomes: Callable[[Sequence[Configuration]], Outcomes]) -> Iterator[Batch]:
    """The batches of a search; ``outcomes`` is asked after each what became of it."""
    batch = next(search, ())
    while batch:
        yield batch
        try:
            batch = search.send(outcomes(batch))
        except StopIteration:
            return
