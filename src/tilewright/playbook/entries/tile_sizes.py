"""Halves or doubles one tile size, or two tile sizes together.

The change helps if tiles are much smaller or larger than registers and shared memory allow. Each size costs a
compilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from tilewright.hardware.prediction_error import ChangeKind
from tilewright.playbook.analyses.best_predicted import allowed, tile_values
from tilewright.playbook.analyses.configuration_sites import ConfigurationSite, places
from tilewright.playbook.analyses.ragged_tiles import value_with_padding, written_with_padding
from tilewright.playbook.base import ANY_LANGUAGE, Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

SITES = 6
Sizes: TypeAlias = Mapping[str, Value]  # the size of each tile, by name


class TileSizes(Entry):
    about = EntryDescription(
        id="tile_sizes",
        name="tile sizes",
        what="halves or doubles a tile size, or two of them",
        when="tiles are far from what registers and shared memory hold, or waste the last tile of a dimension",
        when_not="the size is fixed by the problem, such as a head's dimension or a whole row",
        priority={"memory": 5, "balanced": 4, "compute": 2},
        eases=("too few blocks", "last wave", "bytes in flight", "residency", "tile size", "spills"),
        order=90,
        language=ANY_LANGUAGE,
        effect=Effect.assumed(1.05, 1.50, kept=1, of=30),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        shipped, found = facts.task.space.shipped, list[Site]()
        for place in places(source, facts):
            near = {name: tile_values(name, shipped[name], facts) for name in place.constants}
            now = {name: int(shipped[name]) for name, sizes in near.items() if sizes}  # type: ignore[arg-type]
            pair = sorted(sorted(now, key=lambda name: -now[name])[:2])
            if len(pair) == 2:
                found += _site(place, source, facts, " and ".join(pair), _pairs(pair, now, near))
            for name, size in now.items():
                changes = [{name: other} for other in near[name] if other in (size * 2, size // 2)]
                found += _site(place, source, facts, name, changes)
        return found[:SITES]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return written_with_padding(source, site, value)

    def kind(self, value: Value) -> ChangeKind:
        return "tiles"


def _pairs(names: Sequence[str], now: Mapping[str, int], near: Mapping[str, tuple[int, ...]]) -> Iterator[Sizes]:
    """Yields pairs of new sizes for two tile dimensions. The pair with both doubled comes first, because most kernels
    have small tiles, which read more data."""
    (one, other), (a, b) = names, [now[name] for name in names]
    for left, right in ((a * 2, b * 2), (a * 2, b // 2), (a // 2, b * 2), (a // 2, b // 2)):
        if left in near[one] and right in near[other]:
            yield {one: left, other: right}


def _site(
    place: ConfigurationSite, source: Source, facts: KernelFacts, what: str, changes: Iterable[Sizes]
) -> Iterator[Site]:
    """Yields a site with the ``changes`` that the space and the launch allow; nothing if they allow none."""
    possible = (change for change in changes if allowed(facts, facts.task.space.shipped.replace(**change)))
    if values := tuple(value_with_padding(place, change, source, facts) for change in possible):
        yield place.site(f"{what} of {place.kernel}", values)


ENTRY = TileSizes()
