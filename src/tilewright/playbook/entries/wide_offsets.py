"""Computes the row offsets of a Triton kernel in 64 bits, if a tensor has 2³¹ elements or more.

``row * stride`` with ``row = tl.program_id(0)`` is a 32-bit product. It wraps round beyond 2³¹ − 1, and then the kernel
reads and writes at wrong addresses. The change makes a kernel right, not faster, so it is tried last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import libcst as cst

from tilewright.playbook.analyses.dataflow import assignments
from tilewright.playbook.analyses.triton_code import LANGUAGE, jit_functions, launched_code, spelled, tl_call
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, dotted

INT64 = "int64"
LARGEST = 2**31 - 1


class WideOffsets(Entry):
    about = EntryDescription(
        id="wide_offsets",
        name="64-bit row offsets",
        what="tl.program_id(…).to(tl.int64) where a program's number is multiplied to an offset",
        when="a tensor has 2³¹ elements or more, so that row × stride wraps round in 32 bits",
        when_not="all tensors are smaller: a product of 64 bits takes more instructions",
        priority={},
        order=290,
        language=LANGUAGE,
        effect=Effect.assumed(0.98, 1.02),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        task = facts.task
        arrays = (array for workload in task.selected(None) for array in task.arrays(workload.dims).values())
        if not any(math.prod(array.shape) > LARGEST for array in arrays):
            return []
        return [
            Site.at(source, call, f"{name} of {function}", (INT64,))
            for function, code in launched_code(source, facts).items()
            for name, call in _multiplied(source, code)
        ]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        if value != INT64:
            raise NotApplicable(f"'{value}' is no value of this entry; known: {INT64}")
        calls = [call for code in jit_functions(source).values() for _, call in _multiplied(source, code)]
        call = site.node(source, calls, "no program's number that is multiplied begins here")
        wide = f"{source.code(call)}.to({spelled(source, call, INT64)})"
        return source.replaced({call: cst.parse_expression(wide)})


def _multiplied(source: Source, function: cst.CSTNode) -> Iterator[tuple[str, cst.Call]]:
    """Yields the names that are set to ``tl.program_id(…)`` and used as a factor of a product, each with this call."""
    products = [each for each in source.every(cst.BinaryOperation, function) if isinstance(each.operator, cst.Multiply)]
    factors = {dotted(side) for product in products for side in (product.left, product.right)}
    for _, name, value in assignments(source, function):
        if isinstance(value, cst.Call) and tl_call(source, value) == "program_id" and name in factors:
            yield name, value


ENTRY = WideOffsets()
