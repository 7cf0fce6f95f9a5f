"""Lets float32 operations treat subnormal numbers as zero.

The instructions for 2ˣ, square roots and quotients take normal numbers only. For subnormal numbers the compiler adds a
test and a scaling around each instruction. The change removes both. Results below 1.2e-38 become zero.
"""

from __future__ import annotations

from tilewright.playbook.analyses.dataflow import loops_around
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, with_argument

OPERATIONS = ("exp2", "truediv", "rsqrt", "sqrt", "mul", "add", "sub", "sum", "max", "min", "maximum", "minimum")
"""Functions of cuda.tile 1.7 that take ``flush_to_zero``; the functions that save most time come first."""
MOST_SITES = 6


class FlushToZero(Entry):
    about = EntryDescription(
        id="flush_to_zero",
        name="flush to zero",
        what="flush_to_zero=True on a float32 operation",
        when="exp2, quotients and roots of whole tiles in float32",
        when_not="other dtypes, whose operations do not take the argument; results that matter below 1.2e-38",
        priority={"memory": 7, "balanced": 7, "compute": 9},
        eases=("conversions and special functions", "issue slots"),
        order=110,
        effect=Effect.assumed(1.0, 1.03),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found = []
        for rank, operation in enumerate(OPERATIONS):
            for call in source.calls(operation):
                if argument(call, "flush_to_zero") is None:
                    found.append((not loops_around(source, call), rank, source.place(call), operation, call))
        found.sort(key=lambda ranked: ranked[:3])
        return [Site.at(source, call, f"{name} in float32", (True,)) for *_, name, call in found[:MOST_SITES]]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        calls = [call for call in source.calls(*OPERATIONS) if source.function_of(call) == site.kernel]
        call = site.node(source, calls, "no operation that can flush to zero")
        if argument(call, "flush_to_zero") is not None:
            raise site.refused(source, "the operation has a flush_to_zero already")
        return source.replaced({call: with_argument(call, "flush_to_zero", str(value))})


ENTRY = FlushToZero()
