"""Defines entries that make several changes at once, because none of them gains alone.

A tile access may be slower than a gather as long as each block handles one row, and a persistent grid gains little
while its loads are gathers. So the loop would revert each of them, and never see that both together are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.playbook.base import Entry, KernelFacts, Site, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Source


class Combined(Entry):
    """An entry that makes the changes of all its ``parts``, one after another.

    `apply` makes the first change. The others follow in rounds (`optimize.fields`), each on the best predicted of the
    round before.
    """

    parts: tuple[Entry, ...]
    combined = True

    def __init__(self) -> None:
        self.rest = tuple(part.about.id for part in self.parts[1:])

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        """Returns the first site of the first part in the launched kernel, if all other parts can be added to it.

        Its promise is the product of the promises of all parts.
        """
        site = self._first(self.parts[0], source, facts)
        promise = 0.0 if site is None else self._promise(source, facts, site)
        return [replace(site, promise=promise)] if site is not None and promise else []

    def _first(self, part: Entry, source: Source, facts: KernelFacts) -> Site | None:
        found = (site for site in facts.sites_of(part, source) if site.kernel == facts.kernel)
        site = next(found, None)
        return site if site is not None and site.values else None

    def _promise(self, source: Source, facts: KernelFacts, first: Site) -> float:
        """Returns the product of the promises; 0 if a part cannot be added."""
        site, promise = first, first.promise
        for part, following in pairwise(self.parts):
            text = unless_refused(part.apply, source, site, site.values[0])
            if text is None:
                return 0.0
            source = Source(source.name, text)
            added = self._first(following, source, facts)
            if added is None:
                return 0.0
            site, promise = added, promise * added.promise
        return promise

    def why_not(self, source: Source, facts: KernelFacts) -> str:
        return next((reason for part in self.parts if (reason := part.why_not(source, facts))), "")

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return self.parts[0].apply(source, site, value)
