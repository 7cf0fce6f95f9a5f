"""Tells the compiler that an integer passed to the kernel is a multiple of 16, so that addresses are aligned.

A launch detects multiples by itself for the extents and strides of arrays, but not for plain integers. The claim costs
nothing at run time, but a wrong claim is undefined behaviour. So the claim is offered only if the integer is a multiple
in every shape that the task serves. And it is offered only in the task's own file, where no other code launches the
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from tilewright.languages import language_of
from tilewright.playbook.analyses.task_code import passed, served_launches
from tilewright.playbook.base import Effect, EntryDescription, KernelFacts, Site
from tilewright.playbook.rewriting import Rewritable, Rewriting, starting_with
from tilewright.source.syntax import Function, Source

DIVISORS = (16, 8)
"""The divisors to claim, the largest first. 16 elements of any dtype have at least 16 bytes. This is the widest access,
and the alignment that TMA needs."""


class Divisible(Rewriting[Rewritable[cst.Param]]):
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
    missing = "no number is passed here that is not claimed yet"
    needs_launch = True

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        found, places = [], self.found(source, facts)
        served = list(served_launches(facts)) if places else []
        for place in places:
            numbers = [passed(source, launch).get(place.node.name.value) for launch in served]
            whole = [number for number in numbers if type(number) is int]
            common = math.gcd(*whole) if whole == numbers else 0
            divisors = tuple(each for each in DIVISORS if common and common % each == 0)
            if divisors and not _is_constant(source, place.node, served[0].kernel):
                found.append(place.site(source, "for all shapes that are served", divisors[:1]))
        return found

    def places(self, source: Source, function: Function) -> Iterator[Rewritable[cst.Param]]:
        claims = source.calls("assume_divisible_by", inside=function)
        claimed = {source.code(call.args[0].value) for call in claims}
        for param in function.params.params:
            if (name := param.name.value) not in claimed:
                rewrites = {divisor: partial(_claimed, source, function, name, divisor) for divisor in DIVISORS}
                yield Rewritable(param, f"{name} of {function.name.value}", rewrites)


def _claimed(source: Source, function: Function, name: str, divisor: int) -> str:
    claim = cst.parse_statement(f"{name} = {source.tile_module}.assume_divisible_by({name}, {divisor})")
    return source.replaced({function.body: starting_with(claim)})


def _is_constant(source: Source, param: cst.Param, kernel: Any) -> bool:
    position = source.function_around(param).params.params.index(param)
    return language_of(kernel).constant_parameters(kernel)[position]


ENTRY = Divisible()
