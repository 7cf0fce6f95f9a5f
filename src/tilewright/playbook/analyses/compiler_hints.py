"""The common part of entries for one compiler hint: they write it where the shipped configuration stands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.playbook.analyses.configuration_sites import current, places, written
from tilewright.playbook.base import Entry, KernelFacts, NotApplicable, Site
from tilewright.records import MachineCode, Value
from tilewright.source.syntax import Source
from tilewright.space.knobs import hint_problem


@dataclass(frozen=True)
class Offer:
    """Values of a hint that are worth trying, and why."""

    values: tuple[int, ...]
    promise: float
    why: str


class OneHint(Entry):
    """An entry that sets one compiler hint. ``hint`` is its name."""

    hint: str

    @abstractmethod
    def offer(self, facts: KernelFacts, now: Value) -> Offer:
        """What to try, from the machine code of the incumbent and the hint as it is now."""

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        now = current(facts)[self.hint]
        offer = self.offer(facts, now)
        if not offer.values:
            return []
        return [
            place.site(f"{self.hint} in {place.what}", offer.values, offer.promise, offer.why)
            for place in places(source, facts)
            if self.hint not in place.fixed  # a loop's: entry C offers whole configurations there
        ]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if problem := hint_problem(self.hint, value):
            raise NotApplicable(problem)
        return written(source, site, {self.hint: value})


def hungriest(facts: KernelFacts) -> MachineCode:
    """The machine code with the most registers and spills among those of the workloads."""
    return max(facts.codes.values(), key=lambda code: (code.local_stores, code.registers, code.shared_bytes))
