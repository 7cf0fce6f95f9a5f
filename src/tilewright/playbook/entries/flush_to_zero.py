"""Entry H, second part: operations on float32 that treat subnormal numbers as zero.

The hardware's instructions for 2ˣ, square roots and quotients work on normal numbers; subnormal ones cost a test
and a scaling around each. Results below 1.2e-38 become zero, which 16-bit outputs mostly are anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, with_argument

OPERATIONS = ("exp2", "truediv", "rsqrt", "sqrt", "mul", "add", "sub", "sum", "max", "min", "maximum", "minimum")
"""Functions of cuda.tile 1.7 that take ``flush_to_zero``, those that save the most first."""
MOST_SITES = 6


class FlushToZero(Entry):
    about = EntryDescription(
        id="flush_to_zero",
        name="flush to zero",
        what="flush_to_zero=True on a float32 operation",
        when="exp2, quotients and roots of whole tiles in float32",
        when_not="other dtypes, which do not take it; results that matter below 1.2e-38",
        priority={"memory": 7, "balanced": 7, "compute": 9},
        order=110,
        effect=Effect(1.0, 1.03, "requirements K1 H (+1 to 5 %)", "2026-11-20"),
        risk="lossy",
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        found = []
        for rank, operation in enumerate(OPERATIONS):
            for call in source.calls(operation):
                if argument(call, "flush_to_zero") is None:
                    looped = any(isinstance(one, (cst.For, cst.While)) for one in source.parents(call))
                    found.append((not looped, rank, source.place(call), operation, source.function_of(call)))
        return [
            Site(kernel, line, column, f"{operation} in float32", (True,))
            for _, _, (line, column), operation, kernel in sorted(found)[:MOST_SITES]
        ]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        place = (site.line, site.column)
        calls = [one for one in source.calls(*OPERATIONS) if source.place(one) == place]
        call = next((one for one in calls if source.function_of(one) == site.kernel), None)
        if call is None:
            raise NotApplicable(f"{source.name}:{site.line}: no operation that can flush to zero")
        if argument(call, "flush_to_zero") is not None:
            raise NotApplicable(f"{source.name}:{site.line}: it says already whether it flushes to zero")
        return source.replaced({call: with_argument(call, "flush_to_zero", str(value))})


ENTRY = FlushToZero()
