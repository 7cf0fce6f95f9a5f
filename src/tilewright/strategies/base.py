"""The protocol of a search strategy: a generator that yields configurations and receives their outcomes.

    class Halving(Strategy):
        name = "halving"

        def search(self, space):
            outcomes = yield space.ranked[:8]
            ...

    STRATEGY = Halving()

A strategy does no I/O and uses no GPU. Put the file into this folder, or name it in the entry point group
``tilewright.strategies`` of your package. `tilewright.testing.strategies.StrategyContract` tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.records import Candidate, Configuration, PredictedTime

Batch: TypeAlias = tuple[Configuration, ...]
Outcomes: TypeAlias = tuple[Candidate, ...]
"""The outcomes of a batch in its order: verified, and raced if there is a GPU."""
Search: TypeAlias = Generator[Batch, Outcomes, None]


@dataclass(frozen=True)
class SearchSpace:
    """The configurations of one workload after the screen."""

    ranked: Batch
    """The configurations worth trying, the shortest predicted time first, without duplicates."""
    predicted: Mapping[Configuration, PredictedTime]
    baseline: Configuration | None
    """The configuration shipped today, or one with the same machine code; None if neither is in ``ranked``."""
    top: int
    """How many configurations the user asked for."""
    measured: bool
    """True if outcomes have measured times, False if they have only the interpreter's verdicts."""


class Strategy(ABC):
    """A search order. ``name``: selects the strategy."""

    name: str

    @abstractmethod
    def search(self, space: SearchSpace) -> Search:
        """Yields batches of ``space.ranked``, no configuration twice, and receives the outcomes of each batch."""


def batches(search: Search, outcomes: Callable[[Sequence[Configuration]], Outcomes]) -> Iterator[Batch]:
    """Yields the batches of a search, and sends it ``outcomes`` of each batch."""
    batch = next(search, ())
    while batch:
        yield batch
        try:
            batch = search.send(outcomes(batch))
        except StopIteration:
            return
