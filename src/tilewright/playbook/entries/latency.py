"""E: latency hints on loads and stores: how far ahead the compiler should plan for them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.playbook.analyses.access_hints import (
    LOADS,
    STORES,
    ArrayAccess,
    accesses,
    at,
    hottest,
    is_variable,
    with_keyword,
)
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, number

KINDS = (*LOADS, *STORES)
FOR_STREAMS = (10, 6, 3, 1)
FOR_PRODUCTS = (3, 6, 2, 10)
FOR_ATTENTION = (6, 4, 2, 3)
FOR_STORES = (3, 1, 6)
"""K3: 1 for few elements, 2 and 3 as a rule, 6 for keys and values of attention, 10 for the main input;
K1 E: 3 for stores."""
LOWEST, HIGHEST = 1, 10


class LatencyHints(Entry):
    about = EntryDescription(
        id="latency",
        name="latency hints",
        what="tells the compiler how long a load or store takes, so that it starts more of them ahead",
        when="loads in the innermost loop have no hint, or one chosen for another board",
        when_not="a kernel without a loop has nothing to start ahead",
        priority={"memory": 6, "balanced": 6, "compute": 6},
        order=70,
        effect=Effect(1.00, 1.05, "K1 E: +2 to 5 %", "2026-11"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        open_ = [one for one in accesses(source) if not is_variable(one.keyword("latency"))]
        found = [_of_all(source, name, open_) for name in source.tile_code]
        for one in hottest(open_):
            values = _without(_values(source, one), one)
            promise = 1.0 if one.depth else 0.5
            found.append(Site(one.kernel, one.line, one.column, f"latency of {one}", values, promise, _why(one)))
        return [site for site in found if site is not None]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if not isinstance(value, int) or not LOWEST <= value <= HIGHEST:
            raise NotApplicable(f"latency={value}: {LOWEST} to {HIGHEST}")
        chosen = at(source, site, KINDS)
        if (site.line, site.column) != (chosen[0].line, chosen[0].column):
            chosen = [one for one in chosen if one.is_load and not is_variable(one.keyword("latency"))]
        return with_keyword(source, chosen, "latency", str(value))


def _of_all(source: Source, name: str, open_: Sequence[ArrayAccess]) -> Site | None:
    """All loads of a function at once, where it has several."""
    loads = [one for one in open_ if one.is_load and one.kernel == name]
    if len(loads) < 2:
        return None
    line, column = source.place(source.tile_code[name])
    known = [{*_known(one)} for one in loads]
    values = tuple(one for one in _values(source, loads[0]) if any({one} != hints for hints in known))
    return Site(name, line, column, f"latency of all loads of {name}", values, 1.1, f"{len(loads)} loads")


def _values(source: Source, access: ArrayAccess) -> tuple[int, ...]:
    if not access.is_load:
        return FOR_STORES
    function = source.tile_code[access.kernel]
    products = source.calls("mma", "mma_scaled", "matmul", inside=function)
    if products and source.calls("exp", "exp2", inside=function):
        return FOR_ATTENTION
    return FOR_PRODUCTS if products else FOR_STREAMS


def _known(access: ArrayAccess) -> tuple[int, ...]:
    value = number(access.keyword("latency"))
    return (int(value),) if value is not None else ()


def _without(values: tuple[int, ...], access: ArrayAccess) -> tuple[int, ...]:
    return tuple(one for one in values if one not in _known(access))


def _why(access: ArrayAccess) -> str:
    loops = "in no loop" if not access.depth else "in a loop" if access.depth == 1 else f"in {access.depth} loops"
    hint = f", latency={_known(access)[0]}" if _known(access) else ", no hint"
    return loops + hint


ENTRY = LatencyHints()
