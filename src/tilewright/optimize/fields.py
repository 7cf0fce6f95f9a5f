"""Builds the field of a proposal: the versions that are judged together.

    values → compiled → the best predicted → one more entry on each → compiled → … → screened

The field of most proposals has only the proposal's values. A structural change has its own best hints, and some changes
gain only together. So the field of such a proposal grows in rounds. Each round adds the change of one more entry to the
best predicted versions of the rounds before.

`look_ahead` is a proposal of pairs. It is made when no single change is left. Its field has only the pairs that are
predicted to gain; the ledger has the prediction of each other pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.ledger.records import Attempt
from tilewright.optimize.attempting import Request, Variant, apply_values, noted, screen
from tilewright.optimize.choosing import Proposal
from tilewright.optimize.decide import PREDICTED_WORTH
from tilewright.playbook.analyses.edited_files import EditedFiles, edited_files
from tilewright.playbook.base import ANY_LANGUAGE, Entry, KernelFacts, Site
from tilewright.records import Value


@dataclass(frozen=True)
class Width:
    """How wide a round is: how many versions, the best predicted, get how many values of the next entry."""

    leaders: int
    values: int | None


MUST, MAY, FIELD = Width(3, 3), Width(2, 2), Width(1, None)
"""The width for an entry that must follow, for one that may be added, and for one whose values are all added. The first
is wider, because the predicted order of changes of form is not reliable."""
LOOK_AHEAD = "look_ahead"

Texts = Mapping[Path, str]
Built = tuple[list[Variant], list[Attempt]]


@dataclass(frozen=True)
class FieldBuilder:
    """Builds fields on one incumbent.

    entries: the entries that may be paired.
    addable: the entries that may be added to a structural change.
    build: compiles versions in parallel.
    facts_of: returns the facts of a variant.
    """

    incumbent: Variant
    entries: Sequence[Entry]
    addable: Sequence[Entry]
    build: Callable[[Sequence[Request]], Built]
    facts_of: Callable[[Variant], KernelFacts]

    def field(self, proposal: Proposal, label: str) -> Built:
        """Returns the variants to judge, the best predicted first, and an `Attempt` for each dropped value.

        label: the name of the proposal's versions on disk.
        """
        if proposal.entry == LOOK_AHEAD:
            return self._pairs(label)
        requests, attempts = apply_values(proposal, self.incumbent.texts, label)
        variants, failed = self.build(requests)
        attempts += failed
        for name in proposal.rest:
            steps = variants
            variants, failed = self._round(variants, name, f"{label}-{name}", MUST)
            attempts += failed + [self._dropped(step, f"only a step before {name}") for step in steps]
        return self._screened(variants, attempts, proposal.together, label)

    def _screened(
        self, variants: list[Variant], attempts: list[Attempt], together: Sequence[str], label: str
    ) -> Built:  # fmt: skip
        """Adds the entries ``together`` to the best variants, and drops the variants that are not judged."""
        for name in together:
            more, failed = self._round(variants, name, f"{label}-{name}", MAY)
            variants, attempts = variants + more, attempts + failed
        kept, dropped = screen(variants, self.incumbent)
        return kept, attempts + dropped

    def _round(self, variants: Sequence[Variant], name: str, label: str, width: Width) -> Built:
        """Adds the change of the entry ``name`` to the best predicted variants."""
        entry = next((entry for entry in self.addable if entry.about.id == name), None)
        if entry is None:
            return [], []
        if entry.about.all_values:
            return self._added([(variant, entry) for variant in variants[:1]], label, FIELD)
        return self._added([(leader, entry) for leader in _leaders(variants, width)], label, width)

    def _added(self, pairs: Sequence[tuple[Variant, Entry]], label: str, width: Width) -> Built:
        """Builds each variant with the change of the entry, at its first site in the launched kernel."""
        requests: list[Request] = []
        dropped: list[Attempt] = []
        for variant, entry in pairs:
            before = "" if variant is self.incumbent else f"{variant.value}, "
            with noted(dropped, f"{before}{entry.about.id}", "does not apply"):
                for value, change in itertools.islice(self._steps(variant, entry), width.values):
                    text = f"{before}{entry.about.id}={value}"
                    with noted(dropped, text, "does not apply"):
                        requests.append((text, f"{label}-{len(requests)}", change()))
        variants, failed = self.build(requests)
        return variants, dropped + failed

    def _steps(self, variant: Variant, entry: Entry) -> Iterator[tuple[Value, Callable[[], Texts]]]:
        texts, facts = variant.texts, self.facts_of(variant)
        for files in edited_files(texts):
            launched = (site for site in entry.sites(files.source, facts) if site.kernel in ("", facts.kernel))
            for site in itertools.islice(launched, 1):
                for value in site.search() if site.search else site.values:
                    yield value, _change(entry, files, site, value, texts)
                return

    def _pairs(self, label: str) -> Built:
        """Builds all pairs of structural changes, and keeps those that are predicted to gain."""
        structural = [entry for entry in self.entries if entry.about.together and not entry.rest]
        firsts: dict[str, list[Variant]] = {}
        attempts: list[Attempt] = []
        for entry in structural:
            built, failed = self._added([(self.incumbent, entry)], f"{label}-{entry.about.id}", MUST)
            attempts += failed
            if built:
                firsts[entry.about.id] = _leaders(built, MAY)
        possible = [entry for entry in structural if entry.about.id in firsts]
        pairs = itertools.combinations(possible, 2)
        chosen = [(leader, other) for one, other in pairs for leader in firsts[one.about.id]]
        variants, failed = self._added(chosen, f"{label}-pair", MAY)
        enough = (1 - PREDICTED_WORTH) * self.incumbent.predicted_us
        kept = [variant for variant in variants if variant.predicted_us < enough]
        attempts += failed + [self._dropped(one, "pruned") for one in variants if one.predicted_us >= enough]
        together = dict.fromkeys(name for entry in structural for name in entry.about.together if name not in firsts)
        return self._screened(kept, attempts, tuple(together) if kept else (), label)

    def _dropped(self, variant: Variant, why: str) -> Attempt:
        times = variant.predicted_us / self.incumbent.predicted_us
        return variant.attempt("screened", f"predicted {times:.2f}× the incumbent's time: {why}")


def look_ahead() -> Proposal:
    """Returns the proposal of all pairs of structural changes."""
    return Proposal(
        entry=LOOK_AHEAD, name="two structural changes at once", place="pairs of structural changes", risk="lossless",
        values=tuple, apply=lambda value: {}, score=0.0, why="no single change is left; pairs are predicted first",
    )  # fmt: skip


def addable(entries: Sequence[Entry], language: str, lossy: bool) -> tuple[Entry, ...]:
    """Returns the entries that may be added to changes of kernels of ``language``."""
    fitting = (entry for entry in entries if entry.about.language in (language, ANY_LANGUAGE))
    return tuple(entry for entry in fitting if lossy or entry.about.risk == "lossless")


def _leaders(variants: Sequence[Variant], width: Width) -> list[Variant]:
    """Returns the best predicted variants with different code."""
    distinct = {variant.identity: variant for variant in sorted(variants, key=_predicted, reverse=True)}
    return sorted(distinct.values(), key=_predicted)[: width.leaders]


def _predicted(variant: Variant) -> float:
    return variant.predicted_us


def _change(entry: Entry, files: EditedFiles, site: Site, value: Value, texts: Texts) -> Callable[[], Texts]:
    return lambda: {**texts, **files.parted(entry.change(files.source, site, value))}
