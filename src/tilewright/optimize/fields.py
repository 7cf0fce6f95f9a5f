"""Builds the field of a proposal: the versions that are judged together.

    values → compiled → raced, or predicted → one more entry on the best → compiled → … → screened

The field of most proposals has only the proposal's values. A structural change has its own best hints, and some changes
gain only together. So the field of such a proposal grows in rounds. Each round adds the change of one more entry to the
best versions of the rounds before. With a GPU, the first three versions of a round are raced (`gates.heats`) before the
next round is compiled, so that the fastest version is built upon. Without a GPU, it is the best predicted.

`look_ahead` is a proposal of pairs. It is made when no single change is left. Its field has only the pairs that are
predicted to gain; the ledger has the prediction of each other pair.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tilewright.errors import MachineError, TilewrightError
from tilewright.hardware.executions import occupancy_of
from tilewright.ledger.records import Attempt
from tilewright.optimize.attempting import Request, Variant, apply_values, no_variant, noted, screen
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.decide import PREDICTED_WORTH
from tilewright.optimize.gates.base import Ranking
from tilewright.optimize.gates.heats import by_form
from tilewright.playbook.analyses.edited_files import edited_files
from tilewright.playbook.base import Entry, KernelFacts
from tilewright.records import Value


@dataclass(frozen=True)
class Width:
    """How wide a round is: how many versions, the best predicted, get how many values of the next entry."""

    leaders: int
    values: int | None


MUST, MAY, ADDED, FIELD = Width(3, 3), Width(2, 2), Width(1, 2), Width(1, None)
"""The width for an entry that must follow, for one of a pair, for one that is added to the best version, and for one
whose values are all added. The predicted order of changes of form is not reliable, so changes that must go together get
more."""
LOOK_AHEAD = "look_ahead"
FIRST_HEATS = 2
"""Heats of the structural change alone: one for its forms, one for the values of the fastest form."""
RESCUE = 1.5
"""Hints are not added to a change that takes more than this many times the incumbent's time. In the recorded fields,
they gain up to 1.41×. They gain more if the change leaves fewer CTAs on an SM: without a hint, the compiler may give a
thread all registers."""

Texts = Mapping[Path, str]
Built = tuple[list[Variant], list[Attempt]]
Start = tuple[str, Texts, KernelFacts]
"""A version to which a change is added: its changes so far as text, its files, and the facts for the next entry."""


@dataclass(frozen=True)
class FieldBuilder:
    """Builds fields on one incumbent.

    entries: the entries that may be paired.
    addable: the entries that may be added to a structural change.
    build: compiles versions in parallel.
    facts_of: returns the facts of a variant.
    ranking: races versions of a round before the next round is compiled.
    """

    incumbent: Variant
    entries: Sequence[Entry]
    addable: Sequence[Entry]
    build: Callable[[Sequence[Request]], Built]
    facts_of: Callable[[Variant], KernelFacts]
    ranking: Ranking

    def field(self, proposal: Proposal, label: str) -> Built:
        """Returns the variants to judge, the best predicted first, and an `Attempt` for each dropped value.

        label: the name of the proposal's versions on disk.
        """
        if proposal.entry == LOOK_AHEAD:
            return self._pairs(label)
        requests, attempts = apply_values(proposal, self.incumbent.texts, label)
        facts = self.facts_of(self.incumbent)
        for entry in self._named(proposal.rest):  # nothing is compiled in between: a step alone may not compile
            starts = [(f"{value}, ", texts, facts) for value, _, texts in requests]
            requests, failed = self._requests(starts, entry, f"{label}-{entry.about.id}", MUST)
            attempts += failed
        variants, failed = self.build(requests)
        return self._screened(variants, attempts + failed, proposal.together, label)

    def _screened(self, variants: list[Variant], attempts: list[Attempt], together: Sequence[str], label: str) -> Built:
        """Adds the entries ``together`` to the best variants, and drops the variants that are not judged."""
        added = self._named(together)
        if added:
            self._heats(variants, FIRST_HEATS)
        for entry in added:
            least = self._least(variants)
            if least > RESCUE and not ("residency" in entry.about.eases and self._fewer(variants)):
                why = f"not added: the best version takes {least:.2f}× the incumbent's time"
                attempts = [*attempts, no_variant(entry.about.id, "screened", why)]
                continue
            more, failed = self._round(variants, entry, f"{label}-{entry.about.id}", ADDED)
            variants, attempts = variants + more, attempts + failed
            self._heats(variants, 1)
        kept, dropped = screen(variants, self.incumbent)
        return kept, attempts + dropped

    def _heats(self, variants: Sequence[Variant], most: int) -> None:
        """Races the most promising variants that were not raced yet, in at most so many heats.

        If the worker fails, the prediction leads. The race after the last round reports the failure.
        """
        left, _ = screen(variants, self.incumbent)
        try:
            while most and self.ranking.heat(left):
                most -= 1
        except MachineError:
            raise
        except TilewrightError:
            return

    def _least(self, variants: Sequence[Variant]) -> float:
        """Returns the least time of the variants / the incumbent's time: the least that was raced, or predicted."""
        predicted = (variant.predicted_us / self.incumbent.predicted_us for variant in variants)
        return min(self.ranking.times.values(), default=min(predicted, default=math.inf))

    def _fewer(self, variants: Sequence[Variant]) -> bool:
        """Returns whether an SM holds fewer CTAs of the best predicted variant than of the incumbent."""
        best = min(variants, key=_predicted, default=self.incumbent)
        now, before = (
            [occupancy_of(code, each.board).ctas for code in each.codes.values()] for each in (best, self.incumbent)
        )
        return any(map(operator.lt, now, before))

    def _named(self, names: Sequence[str]) -> list[Entry]:
        """Returns the entries with these names, in this order. An entry of another package may be missing."""
        known = {entry.about.id: entry for entry in self.addable}
        return [known[name] for name in names if name in known]

    def _round(self, variants: Sequence[Variant], entry: Entry, label: str, width: Width) -> Built:
        """Builds the best predicted variants with the change of the entry."""
        if entry.about.all_values:
            leaders, width = list(variants[:1]), FIELD
        else:
            leaders = _leaders(variants, width, self.ranking.times)
        before = ("" if variant is self.incumbent else f"{variant.value}, " for variant in leaders)
        starts = [(text, each.texts, self.facts_of(each)) for text, each in zip(before, leaders, strict=True)]
        requests, dropped = self._requests(starts, entry, label, width)
        variants, failed = self.build(requests)
        return [_grown(variant, leaders, entry) for variant in variants], dropped + failed

    def _requests(
        self, starts: Sequence[Start], entry: Entry, label: str, width: Width
    ) -> tuple[list[Request], list[Attempt]]:
        """Adds the change of the entry to each version, at its first site in the launched kernel."""
        requests: list[Request] = []
        dropped: list[Attempt] = []
        for before, texts, facts in starts:
            with noted(dropped, f"{before}{entry.about.id}", "does not apply"):
                for value, change in itertools.islice(_steps(texts, facts, entry), width.values):
                    text = f"{before}{entry.about.id}={value}"
                    with noted(dropped, text, "does not apply"):
                        requests.append((text, f"{label}-{len(requests)}", change()))
        return requests, dropped

    def _pairs(self, label: str) -> Built:
        """Builds all pairs of structural changes, and keeps those that are predicted to gain."""
        structural = [entry for entry in self.entries if entry.about.together and not entry.rest]
        firsts: dict[str, list[Variant]] = {}
        attempts: list[Attempt] = []
        for entry in structural:
            built, failed = self._round([self.incumbent], entry, f"{label}-{entry.about.id}", MUST)
            attempts += failed
            if built:
                firsts[entry.about.id] = _leaders(built, MAY, {})
        variants: list[Variant] = []
        for one, other in itertools.combinations([entry for entry in structural if entry.about.id in firsts], 2):
            name = f"{label}-{one.about.id}-{other.about.id}"
            built, failed = self._round(firsts[one.about.id], other, name, MAY)
            variants, attempts = variants + built, attempts + failed
        enough = (1 - PREDICTED_WORTH) * self.incumbent.predicted_us
        kept = [variant for variant in variants if variant.predicted_us < enough]
        attempts += [self._pruned(variant) for variant in variants if variant.predicted_us >= enough]
        together = dict.fromkeys(name for entry in structural for name in entry.about.together if name not in firsts)
        return self._screened(kept, attempts, tuple(together) if kept else (), label)

    def _pruned(self, variant: Variant) -> Attempt:
        times = variant.predicted_us / self.incumbent.predicted_us
        return variant.attempt("screened", f"predicted {times:.2f}× the incumbent's time: pruned")


def look_ahead() -> Proposal:
    """Returns the proposal of all pairs of structural changes."""
    return Proposal(
        entry=LOOK_AHEAD, name="two structural changes at once", place="pairs of structural changes", risk="lossless",
        values=tuple, apply=lambda value: {}, score=0.0, why="no single change is left; pairs are predicted first",
    )  # fmt: skip


def addable(entries: Sequence[Entry], language: str, lossy: bool) -> tuple[Entry, ...]:
    """Returns the entries that may be added to changes of kernels of ``language``."""
    fitting = (entry for entry in entries if entry.about.is_for(language))
    return tuple(entry for entry in fitting if lossy or entry.about.risk == "lossless")


def _leaders(variants: Sequence[Variant], width: Width, times: Mapping[str, float]) -> list[Variant]:
    """Returns the fastest raced variant. If none was raced, returns the best predicted variants with different code:
    first the best of each form, then the others."""
    raced = [variant for variant in variants if variant.version.name in times]
    if raced:
        return [min(raced, key=lambda variant: times[variant.version.name])]
    distinct = {variant.identity: variant for variant in sorted(variants, key=_predicted, reverse=True)}
    return by_form(sorted(distinct.values(), key=_predicted))[: width.leaders]


def _grown(variant: Variant, leaders: Sequence[Variant], entry: Entry) -> Variant:
    """Notes the structure of a variant that was made from one of ``leaders`` by the entry, if it has added hints."""
    for leader in leaders:
        before = f"{leader.value}, {entry.about.id}="
        if str(variant.value).startswith(before):
            form = entry.kind(str(variant.value).removeprefix(before)) == "form" and not entry.about.all_values
            if leader.structure or not form:
                return replace(variant, structure=leader.structure or str(leader.value))
    return variant


def _predicted(variant: Variant) -> float:
    return variant.predicted_us


def _steps(texts: Texts, facts: KernelFacts, entry: Entry) -> Iterator[tuple[Value, Callable[[], Texts]]]:
    """Yields the values of the entry's first site in the launched kernel, each with the function that changes the
    texts."""
    for files in edited_files(texts):
        launched = (site for site in facts.sites_of(entry, files.source) if site.kernel in ("", facts.kernel))
        for site in itertools.islice(launched, 1):
            for value in site.values_to_try():
                yield value, partial(files.changed, texts, entry, site, value)
            return
