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

    def __init__(self) -> None:
        self.rest = tuple(part.about.id for part in self.parts[1:])

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        """Returns the first site of the first part to which all other parts can be added in the same kernel.

        Its promise is the product of the promises of all parts.
        """
        for site in self.parts[0].sites(source, facts):
            if site.values and (promise := self._promise(source, facts, site)):
                return [replace(site, promise=promise)]
        return []

    def _promise(self, source: Source, facts: KernelFacts, first: Site) -> float:
        """Returns the product of the promises; 0 if a part cannot be added."""
        site, promise = first, first.promise
        for part, following in pairwise(self.parts):
            text = unless_refused(part.apply, source, site, site.values[0])
            source = Source(source.name, text or "")
            sites = following.sites(source, facts) if text is not None else ()
            found = [each for each in sites if each.kernel == first.kernel]
            if not found or not found[0].values:
                return 0.0
            site, promise = found[0], promise * found[0].promise
        return promise if self.parts[-1].applies(source, site) else 0.0

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return self.parts[0].apply(source, site, value)
