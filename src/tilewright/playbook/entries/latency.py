"""Sets the latency hint of loads and stores, which tells the compiler how far ahead to start them.

The hint helps where a loop waits for its loads. Starting loads early costs registers and shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.hardware.prediction_error import ChangeKind
from tilewright.playbook.analyses.access_hints import MOST, ArrayAccess, accesses, at, is_variable, with_keyword
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, number

FOR_STREAMS = (10, 6, 3, 1)
FOR_PRODUCTS = (3, 6, 2, 10)
FOR_ATTENTION = (6, 4, 2, 3)
FOR_STORES = (3, 1, 6)
"""The latencies to try, the usual choice first: for loads in three kinds of kernel, and for stores."""
LOWEST, HIGHEST = 1, 10


class LatencyHints(Entry):
    about = EntryDescription(
        id="latency",
        name="latency hints",
        what="tells the compiler how long a load or store takes, so that it starts more of them ahead",
        when="loads in the innermost loop have no hint, or one chosen for another GPU",
        when_not="a kernel without a loop has nothing to start ahead",
        priority={"memory": 6, "balanced": 6, "compute": 6},
        eases=("bytes in flight", "residency", "tile size"),
        order=70,
        effect=Effect.assumed(1.00, 1.05, kept=2, of=8),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        free = [access for access in accesses(source) if not is_variable(access.keyword("latency"))]
        found = [site for name in source.tile_code if (site := _of_all(source, name, free))]
        for access in free[:MOST]:
            promise, hint = 1.0 if access.depth else 0.5, _hint(access)
            values = tuple(value for value in _values(source, access) if value != hint)
            loops = ("in no loop", "in a loop")[access.depth] if access.depth < 2 else f"in {access.depth} loops"
            why = f"{loops}, no hint" if hint is None else f"{loops}, latency={hint}"
            found.append(Site.at(source, access.call, f"latency of {access}", values, promise, why))
        return found

    def kind(self, value: Value) -> ChangeKind:
        return "hints"

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if not isinstance(value, int) or not LOWEST <= value <= HIGHEST:
            raise NotApplicable(f"latency={value} is not from {LOWEST} to {HIGHEST}")
        chosen = at(source, site)
        if (site.line, site.column) != source.place(chosen[0].call):
            chosen = [access for access in chosen if access.is_load and not is_variable(access.keyword("latency"))]
        return with_keyword(source, chosen, "latency", str(value))


def _of_all(source: Source, name: str, free: Sequence[ArrayAccess]) -> Site | None:
    """Makes the site that sets the hint of all loads in the function ``name`` at once; None for fewer than two."""
    loads = [access for access in free if access.is_load and access.kernel == name]
    if len(loads) < 2:
        return None
    hints = {_hint(access) for access in loads}
    values = tuple(value for value in _values(source, loads[0]) if hints != {value})
    what = f"latency of all loads of {name}"
    return Site.at(source, source.tile_code[name], what, values, 1.1, f"{len(loads)} loads")


def _values(source: Source, access: ArrayAccess) -> tuple[int, ...]:
    if not access.is_load:
        return FOR_STORES
    function = source.tile_code[access.kernel]
    products = source.calls("mma", "mma_scaled", "matmul", inside=function)
    if products and source.calls("exp", "exp2", inside=function):
        return FOR_ATTENTION
    return FOR_PRODUCTS if products else FOR_STREAMS


def _hint(access: ArrayAccess) -> int | None:
    value = number(access.keyword("latency"))
    return None if value is None else int(value)


ENTRY = LatencyHints()
