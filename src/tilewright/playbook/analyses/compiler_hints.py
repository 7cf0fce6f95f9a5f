"""Defines the base class of the entries that set one compiler hint in the shipped configuration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.hardware.prediction_error import ChangeKind
from tilewright.playbook.analyses.configuration_sites import current, places, written
from tilewright.playbook.base import Entry, KernelFacts, NotApplicable, Site
from tilewright.records import MachineCode, Value
from tilewright.source.syntax import Source
from tilewright.space.knobs import hint_problem


@dataclass(frozen=True)
class Offer:
    """The values of a hint that are worth trying, their promise (see `Site`), and the reason for the promise."""

    values: tuple[int, ...]
    promise: float
    why: str


class OneHint(Entry):
    """An entry that sets the compiler hint named ``hint``."""

    hint: str

    @abstractmethod
    def offer(self, facts: KernelFacts, now: Value) -> Offer:
        """Chooses the values to try, from the incumbent's machine code and the hint's present value ``now``."""

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        """Returns a site wherever the configuration is written, unless a loop sets the hint (see `tune_space`).

        Empty if the kernel's language lacks the hint."""
        now = current(facts)
        if self.hint not in now:
            return ()
        offer = self.offer(facts, now[self.hint])
        return [
            place.site(f"{self.hint} in {place.what}", offer.values, offer.promise, offer.why)
            for place in (places(source, facts) if offer.values else ())
            if self.hint not in place.fixed
        ]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if problem := hint_problem(self.hint, value):
            raise NotApplicable(problem)
        return written(source, site, {self.hint: value})

    def kind(self, value: Value) -> ChangeKind:
        return "hints"


def hungriest(facts: KernelFacts) -> MachineCode:
    """Returns the machine code with the most spills among all workloads. If several have equally many spills, returns
    the code with the most registers."""
    return max(facts.codes.values(), key=lambda code: (code.local_stores, code.registers, code.shared_bytes))
