"""Halves or doubles one tile size, or two together.

It applies where tiles are far from what registers and shared memory hold. Each size costs a compilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilewright.playbook.analyses.best_predicted import allowed, tile_values
from tilewright.playbook.analyses.configuration_sites import ConfigurationSite, places, written
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.playbook.entries.tune_space import read_changes
from tilewright.records import Value
from tilewright.source.syntax import Source

SITES = 6


class TileSizes(Entry):
    about = EntryDescription(
        id="tile_sizes",
        name="tile sizes",
        what="halves or doubles a tile size, or two of them",
        when="tiles are far from what registers and shared memory hold, or waste the last tile of a dimension",
        when_not="the size is fixed by the problem, such as a head's dimension or a whole row",
        priority={"memory": 5, "balanced": 4, "compute": 2},
        order=90,
        effect=Effect.assumed(1.05, 1.50, kept=1, of=30),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        found: list[Site] = []
        for place in places(source, facts):
            sizes = _sizes(place, facts)
            pair = sorted(sizes, key=lambda name: -sizes[name][0])[:2]
            if len(pair) == 2:
                found += _site(place, facts, " and ".join(sorted(pair)), _pairs(sorted(pair), sizes))
            for name, (now, *others) in sizes.items():
                near = [{name: size} for size in others if size in (now * 2, now // 2)]
                found += _site(place, facts, name, near)
        return found[:SITES]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        return written(source, site, read_changes(str(value)))


def _sizes(place: ConfigurationSite, facts: KernelFacts) -> dict[str, tuple[int, ...]]:
    """Tile → its size today and the sizes around it. Tiles with one possible size are left out."""
    shipped = facts.task.space.shipped
    near = {name: tile_values(name, shipped[name], facts) for name in place.constants}
    return {name: (int(shipped[name]), *sizes) for name, sizes in near.items() if sizes}  # type: ignore[arg-type]


def _pairs(names: Sequence[str], sizes: Mapping[str, tuple[int, ...]]) -> Iterator[Mapping[str, Value]]:
    """Pairs of sizes, both larger first: a larger tile reads less, and most kernels are written with small ones."""
    (one, other), ((a, *_), (b, *_)) = names, [sizes[name] for name in names]
    for left, right in ((a * 2, b * 2), (a * 2, b // 2), (a // 2, b * 2), (a // 2, b // 2)):
        if left in sizes[one] and right in sizes[other]:
            yield {one: left, other: right}


def _site(
    place: ConfigurationSite, facts: KernelFacts, what: str, changes: Iterable[Mapping[str, Value]]
) -> Iterator[Site]:
    shipped = facts.task.space.shipped
    possible = (change for change in changes if allowed(facts, shipped.replace(**change)))
    if values := [place.value(change) for change in possible]:
        yield place.site(f"{what} of {place.kernel}", tuple(values))


ENTRY = TileSizes()
