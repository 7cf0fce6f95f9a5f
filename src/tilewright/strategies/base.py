"""Defines the protocol of a search strategy: a generator that yields configurations and receives their outcomes.

    class Halving(Strategy):
        name = "halving"

        def search(self, space):
            outcomes = yield space.ranked[:8]
            ...

    STRATEGY = Halving()

A strategy does no I/O and uses no GPU. Put the file into this folder, or name the strategy in the entry point group
``tilewright.strategies`` of your package. Test the strategy with `tilewright.testing.strategies.StrategyContract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.records import Candidate, Configuration, PredictedTime

Batch: TypeAlias = tuple[Configuration, ...]
Outcomes: TypeAlias = tuple[Candidate, ...]
"""One outcome for each configuration of a batch, in the same order: verified, and raced if there is a GPU."""
Search: TypeAlias = Generator[Batch, Outcomes, None]


@dataclass(frozen=True)
class SearchSpace:
    """The configurations of one workload that were not ruled out by predictions or machine code."""

    ranked: Batch
    """The configurations to choose from, without duplicates. The shortest predicted time is first."""
    predicted: Mapping[Configuration, PredictedTime]
    baseline: Configuration | None
    """The shipped configuration, or a configuration with the same machine code; None if ``ranked`` has neither."""
    top: int
    """The number of configurations that the user asked for."""
    measured: bool
    """True if outcomes have measured times, False if they have only the interpreter's verdicts."""


class Strategy(ABC):
    """Chooses the configurations to try. Users select a strategy by its ``name``."""

    name: str

    @abstractmethod
    def search(self, space: SearchSpace) -> Search:
        """Yields batches of configurations from ``space.ranked``, and receives the outcomes of each batch.

        No configuration may be yielded twice.
        """


def batches(search: Search, outcomes: Callable[[Sequence[Configuration]], Outcomes]) -> Iterator[Batch]:
    """Yields the batches of a search, and sends the result of ``outcomes(batch)`` back to the search."""
    batch = next(search, ())
    while batch:
        yield batch
        try:
            batch = search.send(outcomes(batch))
        except StopIteration:
            return
