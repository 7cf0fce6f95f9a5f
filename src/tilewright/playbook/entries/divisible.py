"""Tells the compiler that an integer passed to the kernel is a multiple of 16, so that addresses are aligned.

A launch detects multiples by itself for the extents and strides of arrays, but not for plain integers. The claim costs
nothing at run time, but a wrong claim is undefined behaviour. So the claim is offered only if the integer is a multiple
in every shape that the task serves. And it is offered only in the task's own file, where no other code launches the
kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tilewright.languages import language_of
from tilewright.playbook.analyses.task_code import own_kernel, served_launches
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

DIVISORS = (16, 8)
"""The divisors to claim, the largest first. 16 elements of any dtype have at least 16 bytes. This is the widest access,
and the alignment that TMA needs."""


class Divisible(Entry):
    about = EntryDescription(
        id="divisible",
        name="assume divisible",
        what="tells the compiler that a number passed to the kernel is a multiple of 16",
        when="addresses are made of a number that the launch passes, and accesses are narrower than 16 bytes",
        when_not="for some shape that the task serves, the number is no multiple",
        priority={"memory": 7, "balanced": 8, "compute": 9},
        eases=("access path", "issue slots"),
        order=240,
        effect=Effect.assumed(1.0, 1.20),
    )

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        kernel = own_kernel(facts, source)
        if not kernel:
            return []
        function = source.kernels[kernel]
        claims = source.calls("assume_divisible_by", inside=function)
        claimed = {source.code(call.args[0].value) for call in claims}
        launched = facts.launch(facts.workloads[0]).kernel
        constants = language_of(launched).constant_parameters(launched)
        found = []
        for place, (param, constant) in enumerate(zip(function.params.params, constants, strict=True)):
            name = param.name.value
            if constant or name in claimed:
                continue
            passed = list(_passed(facts, place))
            numbers = [value for value in passed if isinstance(value, int) and not isinstance(value, bool)]
            divisors = [divisor for divisor in DIVISORS if not any(number % divisor for number in numbers)]
            if divisors and any(numbers) and len(numbers) == len(passed):
                what, why = f"{name} of {kernel}", "for all shapes that are served"
                found.append(Site.at(source, param, what, (divisors[0],), why=why))
        return found

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function(source)
        missing = f"no number is passed to {site.kernel} here"
        name = site.node(source, function.params.params, missing).name.value
        if not isinstance(value, int) or value < 1:
            raise site.refused(source, f"{value} is not a divisor; give a positive integer")
        claim = f"{name} = {source.tile_module}.assume_divisible_by({name}, {value})"
        body = function.body
        if not isinstance(body, cst.IndentedBlock):
            raise NotApplicable(f"{source.name}: {site.kernel} is written on one line")
        first = 1 if function.get_docstring() is not None else 0
        lines = [*body.body[:first], cst.parse_statement(claim), *body.body[first:]]
        return source.replaced({body: body.with_changes(body=lines)})


def _passed(facts: KernelFacts, place: int) -> Iterator[object]:
    """Yields the argument at position ``place`` of the launch, for several shapes."""
    for launch in served_launches(facts):
        yield launch.args[place] if place < len(launch.args) else None


ENTRY = Divisible()
