"""Defines entries that make several changes at once, because none of them gains alone.

A tile access may be slower than a gather as long as each block handles one row, and a persistent grid gains little
while its loads are gathers. So the loop would revert each of them, and never see that both together are faster.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        """Returns the first site of the first part to which all other parts can be added."""
        for site in self.parts[0].sites(source, facts):
            if site.values and self._completes(source, facts, site):
                return [site]
        return []

    def _completes(self, source: Source, facts: KernelFacts, site: Site) -> bool:
        text = unless_refused(self.parts[0].apply, source, site, site.values[0])
        for part in self.parts[1:]:
            changed = Source(source.name, text) if text is not None else source
            found = part.sites(changed, facts) if text is not None else ()
            if not found or not found[0].values:
                return False
            text = unless_refused(part.apply, changed, found[0], found[0].values[0])
        return text is not None

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return self.parts[0].apply(source, site, value)
