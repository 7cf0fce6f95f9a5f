"""Tells the compiler that a whole number passed to the kernel is a multiple of 16, so that addresses are aligned.

A launch specialises on that for the extents and strides of arrays, but not for plain numbers. It costs nothing at run
time. A wrong claim is undefined behaviour, so it is offered only where the number is a multiple in every shape that the
task serves, and only in the task's own file, whose launch is the only caller. No gain is recorded yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from tilewright.errors import TilewrightError
from tilewright.languages import language_of
from tilewright.playbook.analyses.configuration_sites import launched_kernel
from tilewright.playbook.analyses.task_code import launched_here
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source

DIVISORS = (16, 8)
"""16 elements are at least 16 bytes of every dtype, the widest access; TMA needs 16 contiguous bytes."""


class Divisible(Entry):
    about = EntryDescription(
        id="divisible",
        name="assume divisible",
        what="tells the compiler that a number passed to the kernel is a multiple of 16",
        when="addresses are made of a number that the launch passes, and accesses are narrower than 16 bytes",
        when_not="some shape that the task serves makes it no multiple",
        priority={"memory": 7, "balanced": 8, "compute": 9},
        order=240,
        effect=Effect.assumed(1.0, 1.20),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        kernel = launched_kernel(facts)
        here = launched_here(source) == kernel and kernel in source.kernels
        return list(_sites(source, facts, kernel)) if here else []

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = site.function(source)
        missing = f"no number is passed to {site.kernel} here"
        name = site.node(source, function.params.params, missing).name.value
        if not isinstance(value, int) or value < 1:
            raise NotApplicable(f"{source.name}:{site.line}: {value} is no divisor")
        claim = f"{name} = {source.tile_module}.assume_divisible_by({name}, {value})"
        body = function.body
        if not isinstance(body, cst.IndentedBlock):
            raise NotApplicable(f"{source.name}: {site.kernel} stands on one line")
        first = 1 if function.get_docstring() is not None else 0
        lines = [*body.body[:first], cst.parse_statement(claim), *body.body[first:]]
        return source.replaced({body: body.with_changes(body=lines)})


def _sites(source: Source, facts: KernelFacts, kernel: str) -> Iterator[Site]:
    params = source.kernels[kernel].params.params
    claimed = {
        source.code(call.args[0].value) for call in source.calls("assume_divisible_by", inside=source.kernels[kernel])
    }
    kernel = facts.launch(facts.workloads[0]).kernel
    constants = language_of(kernel).constant_parameters(kernel)
    for place, (param, constant) in enumerate(zip(params, constants, strict=True)):
        name = param.name.value
        if constant or name in claimed:
            continue
        passed = list(_passed(facts, place))
        numbers = [one for one in passed if isinstance(one, int) and not isinstance(one, bool)]
        divisors = [one for one in DIVISORS if not any(number % one for number in numbers)]
        if divisors and any(numbers) and len(numbers) == len(passed):
            yield Site.at(source, param, f"{name} of {kernel}", (divisors[0],), why="for all shapes that are served")


def _passed(facts: KernelFacts, place: int) -> Iterator[object]:
    """What the launch passes for a parameter, in the workloads and in the neighbouring shapes that the task serves."""
    task = facts.task
    for workload in facts.workloads:
        for dims in (workload.dims, *_beside(workload.dims)):
            if not task.promises(dims):
                continue
            try:
                launch = task.launched(task.space.shipped, dims, task.arrays(dims), facts.board)
            except TilewrightError:
                continue
            yield launch.args[place] if place < len(launch.args) else None


def _beside(dims: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
    """The dimensions with one of them one larger. If the task serves these, the dimension need not be divisible."""
    for name, extent in dims.items():
        if isinstance(extent, int) and not isinstance(extent, bool):
            yield {**dims, name: extent + 1}


ENTRY = Divisible()
