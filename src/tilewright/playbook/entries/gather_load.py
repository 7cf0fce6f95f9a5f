"""Entry A in reverse: tile loads and stores become gathers and scatters, where no element is used twice.

A tile load through TMA goes by way of shared memory, which pays where a tile is shared or reused. A kernel that
streams each element once through registers can do without that detour (X-17).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.playbook.analyses.dead_names import without_dead
from tilewright.playbook.analyses.gather_access import gathered, tile_accesses
from tilewright.playbook.analyses.tile_access import Converted, with_access
from tilewright.playbook.analyses.tile_shapes import tile_call
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

EVERY = "every access"
LOADS = "loads only"
STORES = "stores only"
PRODUCTS = ("mma", "mma_scaled", "matmul")


class GatherLoad(Entry):
    about = EntryDescription(
        id="gather_load",
        name="gather and scatter",
        what="tile loads and stores as gathers and scatters, straight between memory and registers",
        when="each element is read or written once: elementwise kernels, inversions by scatter",
        when_not="tiles that feed a product of matrices, or are read again by other blocks",
        priority={"memory": 5, "balanced": 6},
        order=20,
        effect=Effect(0.8, 1.4, "requirements X-17: single-pass streaming by gather often wins", "2026-08"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        found = []
        for name, function in source.tile_code.items():
            if source.calls(*PRODUCTS, inside=function):
                continue
            possible = list(_possible(source, name, EVERY))
            if not possible:
                continue
            kinds = {tile_call(source, one.call) for one in possible}
            values = (EVERY, STORES, LOADS) if len(kinds) > 1 else (EVERY,)
            line, column = source.place(function)
            what = f"{len(possible)} tile loads and stores"
            found.append(Site(name, line, column, what, values, 1 / _reads(source, possible)))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = source.functions.get(site.kernel)
        if function is None or source.place(function) != (site.line, site.column):
            raise NotApplicable(f"{source.name}:{site.line}: {site.kernel} does not begin here")
        if value not in (EVERY, LOADS, STORES):
            raise NotApplicable(f"'{value}' is no value of this entry")
        read: set[str] = set()
        changed = source
        while (one := next(_possible(changed, site.kernel, str(value)), None)) is not None:
            read |= one.read
            changed = with_access(changed, one)
        if changed is source:
            raise NotApplicable(f"{site.kernel} has no tile access that a gather or scatter could replace")
        return without_dead(changed, site.kernel, read).text


def _possible(source: Source, function: str, value: str) -> Iterator[Converted]:
    kinds = {LOADS: ("load",), STORES: ("store",)}.get(value, ("load", "store"))
    for call in tile_accesses(source, function):
        if tile_call(source, call) not in kinds:
            continue
        try:
            yield gathered(source, call)
        except NotApplicable:
            continue


def _reads(source: Source, possible: Sequence[Converted]) -> int:
    """The most that one array is accessed in the text: 1 where each element may be used once."""
    arrays = [source.code(one.call.args[0].value) for one in possible]
    return max(arrays.count(array) for array in arrays)


ENTRY = GatherLoad()
