"""Leaves out bound checks in launches whose tiles end exactly with their arrays.

The kernel gets a constant, ``RAGGED``, and each launch computes it from its shapes. The kernel is compiled once with
checks and once without, so shapes that no workload has stay right. It costs one more compilation. The interpreter
follows every address of the shapes without checks, which shows that none leads beyond an array.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read
from tilewright.playbook.analyses.expressions import text_of
from tilewright.playbook.analyses.task_code import (
    argument_of,
    before_launch,
    extent_of,
    fresh_in,
    launch_of,
    starts,
    with_kernel_argument,
    with_launch_parameter,
)
from tilewright.playbook.analyses.tile_reach import Reach, ends_with_array, reaches
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, with_argument

EVERY = "every access"
ELEMENTS = "gathers and scatters"
TILES = "tile loads and stores"
KINDS = {EVERY: ("gather", "scatter", "load", "store"), ELEMENTS: ("gather", "scatter"), TILES: ("load", "store")}
CONSTANT = "RAGGED"
LINE = 90
"""Columns of a condition."""


class CheckBounds(Entry):
    about = EntryDescription(
        id="check_bounds",
        name="no bound checks on even shapes",
        what="a constant RAGGED from the launch, and check_bounds=RAGGED on the accesses",
        when="the extents of most workloads are multiples of the tiles",
        when_not="ragged shapes alone; tile loads through TMA, which checks bounds for nothing",
        priority={"memory": 4, "balanced": 4, "compute": 7},
        order=210,
        effect=Effect.assumed(1.0, 1.15, kept=1, of=3),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        if not (kernel := starts(facts, source)):
            return ()
        checked = _checked(source, kernel, EVERY)
        given = {value: _checked(source, kernel, value) for value in (ELEMENTS, TILES)}
        values = (EVERY, ELEMENTS, TILES) if all(given.values()) else (EVERY,)
        reached = _reaches(source, checked)
        even = [
            workload
            for workload in facts.workloads
            if all(ends_with_array(source, kernel, reach, facts, workload) for reach in reached)
        ]
        if not checked or not even:
            return ()
        why = f"{len(even)} of {len(facts.workloads)} workloads are even"
        what = f"bound checks of {len(checked)} accesses"
        site = Site.at(source, source.kernels[kernel], what, values, len(even) / len(facts.workloads), why)
        return (site,) if self.applies(source, site) else ()

    def apply(self, source: Source, site: Site, value: Value) -> str:
        site.function_here(source)
        if value not in KINDS:
            raise NotApplicable(f"'{value}' is no value of this entry")
        calls = _checked(source, site.kernel, str(value))
        conditions = _conditions(source, site.kernel, _reaches(source, calls))
        if not conditions:
            raise NotApplicable(f"{site.kernel} has no checked access whose tiles are plain")
        name = fresh_in(source, site.kernel, CONSTANT)
        changed = source
        while calls := _checked(changed, site.kernel, str(value)):  # the innermost first: a stored value may be loaded
            changed = changed.changed({calls[-1]: with_argument(calls[-1], "check_bounds", name)})
        own = {*names_assigned(launch_of(source).function.body), *source.functions}
        asked = [read for one in conditions for read in sorted(names_read(cst.parse_expression(one)))]
        for parameter in dict.fromkeys(asked):
            if parameter not in own:  # a dimension, a tensor, ``config``
                changed = with_launch_parameter(changed, parameter)
        changed, ragged = _with_local(changed, conditions)
        annotation = f"{source.spelled('Constant')}[bool]"
        return with_kernel_argument(changed, site.kernel, name, ragged, annotation).text


def _checked(source: Source, kernel: str, value: str) -> list[cst.Call]:
    """The accesses that check bounds and whose tiles are understood."""
    found = []
    for call in source.calls(*KINDS[value], inside=source.functions[kernel]):
        if argument(call, "check_bounds") is not None:
            continue
        try:
            reaches(source, call)
        except NotApplicable:
            continue
        found.append(call)
    return found


def _reaches(source: Source, calls: Sequence[cst.Call]) -> list[Reach]:
    return list(dict.fromkeys(reach for call in calls for reach in reaches(source, call)))


def _conditions(source: Source, kernel: str, found: Sequence[Reach]) -> list[str]:
    """The conditions that make a launch ragged: an extent is no multiple of its tile. Raises `NotApplicable`."""
    asked = []
    for reach in found:
        size = reach.size
        if not size.isdigit():
            size = _given(source, kernel, size, f"how long {size} is")
        array = _given(source, kernel, reach.array, f"which array {reach.array} is")
        dimension = extent_of(source, kernel, reach.array, reach.axis)
        extent = f"{array}.shape[{reach.axis}]"
        if dimension is not None:
            extent = text_of(source, cst.parse_expression(dimension))
        if size not in ("1", extent):
            asked.append(f"{extent} % {size} != 0")
        if reach.tiles > 1:
            asked.append(f"{extent} < {reach.tiles} * {size}")
    return list(dict.fromkeys(asked))


def _given(source: Source, kernel: str, parameter: str, unknown: str) -> str:
    given = argument_of(source, kernel, parameter)
    if given is None:
        raise NotApplicable(f"the launch does not say {unknown}")
    return text_of(source, given)


def _with_local(source: Source, conditions: Sequence[str]) -> tuple[Source, str]:
    """The launch with ``ragged = …`` in front of it, and that name. For a lambda: the condition itself."""
    function, asked = launch_of(source).function, " or ".join(conditions)
    if not isinstance(function, cst.FunctionDef):
        return source, asked
    name = fresh_in(source, function.name.value, "ragged")
    if len(asked) > LINE:
        asked = "(\n    " + "\n    or ".join(conditions) + "\n)"
    return before_launch(source, f"{name} = {asked}"), name


ENTRY = CheckBounds()
