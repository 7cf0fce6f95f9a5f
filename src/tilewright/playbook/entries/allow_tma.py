"""Forbids a load or store to use the tensor memory accelerator (TMA), or allows it again.

TMA moves a whole tile with one instruction, by way of shared memory. A store of a few rows can be faster straight from
registers. Which of the two is faster differs between kernels, so both are measured; each costs one compilation.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.hardware.architectures import architecture
from tilewright.playbook.analyses.access_hints import MOST, ArrayAccess, accesses, at, is_variable, with_keyword
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

COPIES = {"store": "UTMASTG", "load": "UTMALDG"}
"""The instructions by which TMA writes and reads global memory."""
KINDS = tuple(COPIES)


class AllowTma(Entry):
    about = EntryDescription(
        id="allow_tma",
        name="allow_tma",
        what="adds allow_tma=False to a store or load, or takes it away",
        when="the machine code moves small tiles by TMA, as in the stores of a norm",
        when_not="nothing is moved by TMA: sm_80 to 89 have none, and the compiler may have refused it already",
        priority={"memory": 4, "balanced": 3, "compute": 7},
        order=80,
        effect=Effect.assumed(0.95, 1.30, kept=1, of=16),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        if not architecture(facts.board.arch).tma:
            return []
        listed = sorted(accesses(source, KINDS), key=lambda access: KINDS.index(access.kind))
        sites = [_site(source, access, facts) for access in listed[:MOST]]
        return [site for site in sites if site is not None]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        access = at(source, site, KINDS)[0]
        if source.place(access.call) != (site.line, site.column) or not isinstance(value, bool):
            raise NotApplicable(f"{source.name}:{site.line}: allow_tma of one load or store is True or False")
        return with_keyword(source, [access], "allow_tma", None if value else "False")


def _site(source: Source, access: ArrayAccess, facts: KernelFacts) -> Site | None:
    given = access.keyword("allow_tma")
    if is_variable(given):
        return None
    if isinstance(given, cst.Name) and given.value == "False":
        what, value, why = f"TMA for the {access}", True, "allow_tma=False stands there"
    else:
        instruction = COPIES[access.kind]
        moved = max(
            sum(count for name, count in code.copies.items() if name.startswith(instruction))
            for code in facts.codes.values()
        )
        if not moved:
            return None
        what, value, why = f"no TMA for the {access}", False, f"{moved} {instruction} instructions"
    return Site.at(source, access.call, what, (value,), 1.0 if access.kind == "store" else 0.5, why)


ENTRY = AllowTma()
