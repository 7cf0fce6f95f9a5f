"""F: loads and stores without the tensor memory accelerator (TMA), or with it again.

TMA moves whole tiles with one instruction, through shared memory. A store of a few rows may be quicker straight
from registers; which it is, only a measurement says, so both ways are tried.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.hardware.architectures import architecture
from tilewright.playbook.analyses.access_hints import ArrayAccess, accesses, at, hottest, is_variable, with_keyword
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

KINDS = ("store", "load")
COPIES = {"store": "UTMASTG", "load": "UTMALDG"}
"""The instructions by which TMA writes and reads global memory."""


class AllowTma(Entry):
    about = EntryDescription(
        id="allow_tma",
        name="allow_tma",
        what="adds allow_tma=False to a store or load, or takes it away",
        when="the machine code moves small tiles by TMA, as in the stores of a norm",
        when_not="nothing is moved by TMA: sm_80 to 89 have none, and the compiler may have refused it already",
        priority={"memory": 4, "balanced": 3, "compute": 7},
        order=80,
        effect=Effect(0.95, 1.30, "K1 F: +10 to 30 % on stores; always to be measured", "2026-11"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        if not architecture(facts.board.arch).tma:
            return []
        listed = sorted(accesses(source, KINDS), key=lambda one: KINDS.index(one.kind))
        found = (_site(one, facts) for one in hottest(listed))
        return [site for site in found if site is not None]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        (access,) = at(source, site, KINDS)[:1]
        if (access.line, access.column) != (site.line, site.column) or not isinstance(value, bool):
            raise NotApplicable(f"{source.name}:{site.line}: allow_tma of one load or store is True or False")
        return with_keyword(source, [access], "allow_tma", None if value else "False")


def _site(access: ArrayAccess, facts: KernelFacts) -> Site | None:
    given = access.keyword("allow_tma")
    if is_variable(given):
        return None
    if isinstance(given, cst.Name) and given.value == "False":
        what, values, why = f"TMA for the {access}", (True,), "allow_tma=False stands there"
    else:
        moved = {name: _moved(facts, name, COPIES[access.kind]) for name in facts.codes}
        if not any(moved.values()):
            return None
        why = f"{max(moved.values())} {COPIES[access.kind]} instructions"
        what, values = f"no TMA for the {access}", (False,)
    promise = 1.0 if access.kind == "store" else 0.5
    return Site(access.kernel, access.line, access.column, what, values, promise, why)


def _moved(facts: KernelFacts, workload: str, instruction: str) -> int:
    copies = facts.codes[workload].copies
    return sum(count for name, count in copies.items() if name.startswith(instruction))


ENTRY = AllowTma()
