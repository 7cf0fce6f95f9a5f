"""Entry A: gathers and scatters of consecutive elements become tile loads and stores.

A tile load goes through TMA where the GPU has it: one instruction instead of an address, a bound and a register
for each element. Three forms: a load of block n, a load from a view that begins at a ragged segment, and a load of
a page whose id is read once. `tile_access` does the rewriting; what only the old index read is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.playbook.analyses.dead_names import without_dead
from tilewright.playbook.analyses.tile_access import Converted, accesses, converted, with_access
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Function, Source

EVERY = "every access"
VIEWS = "every access, views too"
LOADS = "loads only"
STORES = "stores only"
ONE = "tile access"
SINGLE_SITES = 5
TMA = 90
"""The first compute capability that has it."""


class TileLoad(Entry):
    about = EntryDescription(
        id="tile_load",
        name="tile load and store",
        what="a gather or scatter of consecutive elements as a load or store of a tile, through TMA",
        when="the indices are a range that begins at a multiple of its length, a ragged segment, or a page",
        when_not="real gathers; kernels that stream each element once may lose by it: both are raced",
        priority={"memory": 1, "balanced": 1, "compute": 2},
        order=10,
        effect=Effect(1.0, 2.5, "requirements K1 A (2 to 78 times), X-17 (streaming may lose)", "2026-08"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        found: list[Site] = []
        for name, function in source.tile_code.items():
            possible = list(_possible(source, name))
            if possible:
                found += _sites(source, function, possible, 1.0 if facts.sm >= TMA else 0.5)
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = source.functions.get(site.kernel)
        if function is None:
            raise NotApplicable(f"{source.name}: no function {site.kernel}")
        if value == ONE:
            changed = _one(source, site)
        elif source.place(function) != (site.line, site.column):
            raise NotApplicable(f"{source.name}:{site.line}: {site.kernel} does not begin here")
        elif value in (EVERY, VIEWS, LOADS, STORES):
            changed = _several(source, site.kernel, str(value))
        else:
            raise NotApplicable(f"'{value}' is no value of entry A")
        return changed.text


def _sites(source: Source, function: Function, possible: Sequence[Converted], promise: float) -> list[Site]:
    name = function.name.value
    why = "" if promise == 1 else f"no TMA before sm_{TMA}"
    direct = [one for one in possible if not one.sliced]
    values = _values(source, direct) + ([VIEWS] if len(direct) < len(possible) else [])
    line, column = source.place(function)
    whole = f"{len(possible)} gathers and scatters of ranges"
    found = [Site(name, line, column, whole, tuple(values), promise, why)]
    if len(possible) == 1:
        return found
    for one in possible[:SINGLE_SITES]:
        line, column = source.place(one.call)
        what = f"{tile_call(source, one.call)} of {source.code(one.call.args[0].value)}"
        found.append(Site(name, line, column, what, (ONE,), promise / 2, why))
    return found


def _values(source: Source, direct: Sequence[Converted]) -> list[str]:
    if not direct:
        return []
    kinds = {tile_call(source, one.call) for one in direct}
    return [EVERY, LOADS, STORES] if len(kinds) > 1 else [EVERY]


def _possible(source: Source, function: str, value: str = VIEWS) -> Iterator[Converted]:
    """The accesses that can be converted, of those that a value means."""
    kinds = {LOADS: ("gather",), STORES: ("scatter",)}.get(value, ("gather", "scatter"))
    for call in accesses(source, function):
        if tile_call(source, call) not in kinds:
            continue
        try:
            one = converted(source, call)
        except NotApplicable:
            continue
        if value == VIEWS or not one.sliced:
            yield one


def _one(source: Source, site: Site) -> Source:
    for call in accesses(source, site.kernel):
        if source.place(call) == (site.line, site.column):
            one = converted(source, call)
            return without_dead(with_access(source, one), site.kernel, one.read)
    raise NotApplicable(f"{source.name}:{site.line}: no gather or scatter of {site.kernel} begins here")


def _several(source: Source, function: str, value: str) -> Source:
    read: set[str] = set()
    while (one := next(_possible(source, function, value), None)) is not None:
        read |= one.read
        source = with_access(source, one)
    if not read:
        raise NotApplicable(f"{function} has no such access that a tile access could replace")
    return without_dead(source, function, read)


ENTRY = TileLoad()
