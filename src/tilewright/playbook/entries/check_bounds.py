"""``check_bounds=False`` where a launch's tiles end with their arrays, by a constant that the launch computes.

A kernel promises more shapes than its workloads have, so the check is never just dropped: the kernel is compiled
once with it and once without, and each launch says whether its shape is ragged. The gate's interpreter follows every
address of the shapes that are not, which is the proof that nothing else leads beyond an array.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.playbook.analyses.dataflow import names_assigned, names_read
from tilewright.playbook.analyses.grids import fresh_in, starts
from tilewright.playbook.analyses.task_code import (
    argument_of,
    launch_of,
    shape_of,
    with_kernel_argument,
    with_launch_parameter,
)
from tilewright.playbook.analyses.tile_reach import Reach, ends_with_array, reaches
from tilewright.playbook.base import Effect, Entry, EntryDescription, KernelFacts, NotApplicable, Site
from tilewright.records import Value
from tilewright.source.syntax import Source, argument, dotted, is_atom, with_argument

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
        effect=Effect(1.0, 1.15, "requirements A-51; examples/swiglu.py on H200, measured.md", "2026-11-21"),
    )

    def sites(self, source: Source, facts: KernelFacts) -> Sequence[Site]:
        kernel = starts(facts, source)
        if not kernel:
            return ()
        line, column = source.place(source.kernels[kernel])
        checked = _checked(source, kernel, EVERY)
        given = {value: _checked(source, kernel, value) for value in (ELEMENTS, TILES)}
        values = (EVERY, ELEMENTS, TILES) if all(given.values()) else (EVERY,)
        even = [one for one in facts.workloads if self._is_even(source, kernel, checked, facts, one.name)]
        if not checked or not even:
            return ()
        why = f"{len(even)} of {len(facts.workloads)} workloads are even"
        what = f"bound checks of {len(checked)} accesses"
        site = Site(kernel, line, column, what, values, len(even) / len(facts.workloads), why)
        try:
            self.apply(source, site, EVERY)
        except NotApplicable:
            return ()
        return (site,)

    def apply(self, source: Source, site: Site, value: Value) -> str:
        function = source.kernels.get(site.kernel)
        if function is None or source.place(function) != (site.line, site.column):
            raise NotApplicable(f"{source.name}:{site.line}: no kernel {site.kernel} begins here")
        if value not in KINDS:
            raise NotApplicable(f"'{value}' is no value of this entry")
        calls = _checked(source, site.kernel, str(value))
        conditions = _conditions(source, site.kernel, _reaches(source, calls))
        if not conditions:
            raise NotApplicable(f"{site.kernel} has no checked access whose tiles are plain")
        name = fresh_in(source, site.kernel, CONSTANT)
        text = _with_bounds(source, site.kernel, str(value), name)
        for parameter in _asked(source, conditions):
            text = with_launch_parameter(Source(source.name, text), parameter)
        text, ragged = _with_local(Source(source.name, text), conditions)
        annotation = f"{source.spelled('Constant')}[bool]"
        return with_kernel_argument(Source(source.name, text), site.kernel, name, ragged, annotation)

    def _is_even(
        self, source: Source, kernel: str, calls: Sequence[cst.Call], facts: KernelFacts, workload: str
    ) -> bool:
        [one] = [each for each in facts.workloads if each.name == workload]
        return all(ends_with_array(source, kernel, reach, facts, one) for reach in _reaches(source, calls))


def _checked(source: Source, kernel: str, value: str) -> list[cst.Call]:
    """The accesses that check bounds and whose tiles are understood."""
    found = []
    for call in source.calls(*KINDS[value], inside=source.functions[kernel]):
        if argument(call, "check_bounds", None) is not None:
            continue
        try:
            reaches(source, call)
        except NotApplicable:
            continue
        found.append(call)
    return found


def _reaches(source: Source, calls: Sequence[cst.Call]) -> list[Reach]:
    return list(dict.fromkeys(reach for call in calls for reach in reaches(source, call)))


def _with_bounds(source: Source, kernel: str, value: str, name: str) -> str:
    """One access after the other, innermost first: a stored value may itself be loaded."""
    while calls := _checked(source, kernel, value):
        call = calls[-1]
        source = Source(source.name, source.replaced({call: with_argument(call, "check_bounds", name)}))
    return source.text


def _conditions(source: Source, kernel: str, found: Sequence[Reach]) -> list[str]:
    """What the launch asks: whether an extent is no multiple of its tile. Raises `NotApplicable`."""
    asked = []
    for reach in found:
        size, extent = _size(source, kernel, reach), _extent(source, kernel, reach)
        if size not in ("1", extent):
            asked.append(f"{extent} % {size} != 0")
        if reach.tiles > 1:
            asked.append(f"{extent} < {reach.tiles} * {size}")
    return list(dict.fromkeys(asked))


def _asked(source: Source, conditions: Sequence[str]) -> list[str]:
    """Names that the launch must take: dimensions, tensors, ``config``; not what it computes itself."""
    launch = launch_of(source).function
    own = names_assigned(launch.body)
    names = [name for one in conditions for name in sorted(names_read(cst.parse_expression(one)))]
    return [name for name in dict.fromkeys(names) if name not in own and name not in source.functions]


def _size(source: Source, kernel: str, reach: Reach) -> str:
    if reach.size.isdigit():
        return reach.size
    given = argument_of(source, kernel, reach.size)
    if given is None:
        raise NotApplicable(f"the launch does not say how long {reach.size} is")
    return _factor(source.code(given))


def _extent(source: Source, kernel: str, reach: Reach) -> str:
    """A dimension of the task, or the extent of the launch's array."""
    given = argument_of(source, kernel, reach.array)
    if given is None:
        raise NotApplicable(f"the launch does not say which array {reach.array} is")
    shape = shape_of(source, dotted(given))
    entry = shape[reach.axis] if shape is not None and reach.axis < len(shape) else None
    return f"{_factor(source.code(given))}.shape[{reach.axis}]" if entry is None else _factor(entry)


def _factor(text: str) -> str:
    node = cst.parse_expression(text)
    return text if is_atom(node) or isinstance(node, cst.Integer) else f"({text})"


def _with_local(source: Source, conditions: Sequence[str]) -> tuple[str, str]:
    """The launch with ``ragged = …`` in front of it, and that name; a lambda asks in place."""
    launch = launch_of(source)
    asked = " or ".join(conditions)
    if not isinstance(launch.function, cst.FunctionDef):
        return source.text, asked
    name = fresh_in(source, launch.function.name.value, "ragged")
    if len(asked) > LINE:
        asked = "(\n    " + "\n    or ".join(conditions) + "\n)"
    line = next(one for one in source.parents(launch.call) if isinstance(one, cst.SimpleStatementLine))
    statement = cst.parse_statement(f"{name} = {asked}").with_changes(leading_lines=line.leading_lines)
    both: cst.FlattenSentinel[cst.CSTNode] = cst.FlattenSentinel([statement, line.with_changes(leading_lines=())])
    return source.replaced({line: both}), name


ENTRY = CheckBounds()
