"""Forbids or allows the use of the tensor memory accelerator (TMA) for one load or store.

TMA moves a whole tile through shared memory with one instruction. For a store of a few rows, writing the registers
directly can be faster. The same holds for the large tile of a product: its block waits until the tile is in shared
memory, which also holds the operands. Which of the two is faster depends on the kernel, so both are measured. Each
version costs one compilation.
"""

from __future__ import annotations

import libcst as cst

from tilewright.hardware.architectures import architecture
from tilewright.playbook.analyses.access_hints import MOST, ArrayAccess, accesses, at, is_variable, with_keyword
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

COPIES = {"store": "UTMASTG", "load": "UTMALDG"}  # the instructions by which TMA accesses global memory
KINDS = tuple(COPIES)


class AllowTma(Entry):
    about = EntryDescription(
        id="allow_tma",
        name="allow_tma",
        what="adds allow_tma=False to a store or load, or removes it",
        when="the machine code moves small tiles by TMA, as in the stores of a norm",
        when_not="the machine code uses no TMA: sm_80 to 89 have none, and elsewhere the compiler may not use it",
        priority={"memory": 4, "balanced": 3, "compute": 3},
        eases=("access path", "bytes in flight", "tile size"),
        order=80,
        effect=Effect(0.95, 1.30, "TileGym's grouped products: by hand 887 → 791 µs, H200", "2026-12-01"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        if not architecture(facts.board.arch).tma:
            return []
        listed = sorted(accesses(source, KINDS), key=lambda access: KINDS.index(access.kind))
        return [site for access in listed[:MOST] if (site := _site(source, access, facts))]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        access = at(source, site, KINDS)[0]
        if source.place(access.call) != (site.line, site.column) or not isinstance(value, bool):
            raise site.refused(source, "allow_tma of one load or store must be True or False")
        return with_keyword(source, [access], "allow_tma", None if value else "False")


def _site(source: Source, access: ArrayAccess, facts: KernelFacts) -> Site | None:
    """Makes the site of one access; None if a variable sets ``allow_tma``, or if the machine code has no TMA."""
    given, promise = access.keyword("allow_tma"), 1.0 if access.kind == "store" else 0.5
    if is_variable(given):
        return None
    if isinstance(given, cst.Name) and given.value == "False":
        why = "the access has allow_tma=False"
        return Site.at(source, access.call, f"TMA for the {access}", (True,), promise, why)
    instruction = COPIES[access.kind]
    copies = [code.copies.items() for code in facts.codes.values()]
    moved = max(sum(count for name, count in each if name.startswith(instruction)) for each in copies)
    why = f"{moved} {instruction} instructions"
    return Site.at(source, access.call, f"no TMA for the {access}", (False,), promise, why) if moved else None


ENTRY = AllowTma()
