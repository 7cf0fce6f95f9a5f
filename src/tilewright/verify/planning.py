"""Plans which cases a check runs. The most useful cases come first, because the time may end before the last case.

First come all workloads, at reduced size and on their declared data. Then comes the hardest shape, in which the most
dimensions have a remainder, with every kind of data, every layout and every way to run. Edges and random values of all
dimensions come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.records import Configuration, Value, Workload
from tilewright.task.task import Task
from tilewright.task.tensors import is_whole
from tilewright.verify import shapes
from tilewright.verify.addresses import huge
from tilewright.verify.cases import Case
from tilewright.verify.data import FAR_FROM_ZERO, KINDS, SPECIAL
from tilewright.verify.shapes import Limit, Tiles

SECONDS = 120.0
HOSTILE = Limit(flop=shapes.WORK_FLOP / 2, elements=shapes.WORK_ELEMENTS // 2)  # of each case on the hardest shape


@dataclass(frozen=True)
class Scope:
    """The scope of a check: configurations, workloads and cases, and the limits of the check."""

    configurations: Sequence[Configuration] = ()  # if empty, the shipped one
    workloads: Sequence[Workload] = ()  # if empty, all
    case: Case | None = None  # the only case to run; None for all planned cases
    seed: int = 0  # for the inputs, the random shapes and the order of the blocks
    quick: bool = False  # only reduced workloads and small integers
    seconds: float = SECONDS  # no case begins after this time, except the first; later cases are reported as not run

    def completed(self, task: Task) -> Scope:
        """Returns the scope with empty fields filled in: the task's shipped configuration, and all its workloads."""
        configurations = tuple(self.configurations) or task.space.every_shipped
        return replace(self, configurations=configurations, workloads=self.workloads or task.selected(None))


WHOLE_CHECK = Scope()


@dataclass(frozen=True)
class Planned:
    """One step of a plan. Steps with a low ``rank`` run first."""

    configuration: Configuration
    case: Case
    rank: int
    covers: tuple[str, ...] = ()  # the workloads that are correct only if this case is correct


def plan(task: Task, scope: Scope, *, own_shapes: str | None = None, addresses: bool = False) -> list[Planned]:
    """Returns the cases of a `completed` scope, in the order in which they run.

    own_shapes: the way (of `cases.RUNS`) to run the workloads at their full size; None omits these runs.
    addresses: adds a shape of more than 2³¹ elements, for which only addresses are computed.
    """
    if scope.case is not None:
        return [Planned(configuration, scope.case, 0, ("asked for",)) for configuration in scope.configurations]
    planned: dict[tuple[Configuration, str], Planned] = {}
    for configuration in scope.configurations:
        for rank, case, covers in _steps(task, configuration, scope, own_shapes, addresses):
            key = (configuration, str(case))
            before = planned.get(key, Planned(configuration, case, rank))
            planned[key] = replace(before, covers=tuple(dict.fromkeys((*before.covers, *covers))))
    return sorted(planned.values(), key=lambda step: step.rank)


Step = tuple[int, Case, tuple[str, ...]]  # rank, case, and the workloads that the case covers


def _steps(
    task: Task, configuration: Configuration, scope: Scope, own_shapes: str | None, addresses: bool
) -> Iterator[Step]:  # fmt: skip
    workloads, seed = scope.workloads, scope.seed
    tiles = {workload.name: shapes.moduli(task, configuration, workload.dims) for workload in workloads}

    def raggedness(workload: Workload) -> int:
        sizes = tiles[workload.name].items()
        return sum(shapes.extent(workload.dims, name) % size.least != 0 for name, size in sizes)

    for workload in workloads:
        yield 0, _case(shapes.reduced(task, workload.dims, tiles[workload.name]), seed, workload.name), (workload.name,)
    hardest = max(workloads, key=raggedness)
    for step in _hard(task, hardest, tiles[hardest.name], seed):
        if not scope.quick or step[1].data == "small integers":
            yield step
    if not scope.quick:
        yield from _deep(task, workloads, tiles, seed)
        yield from _edges(task, workloads, tiles, seed)
        if addresses and (dims := huge(task, hardest.dims, tiles[hardest.name])) is not None:
            yield 2, _case(dims, seed, "huge", run="addresses"), ()
    if own_shapes is not None:
        for workload in workloads:
            yield 1, _case(workload.dims, seed, workload.name, run=own_shapes), (workload.name,)


def _case(dims: Mapping[str, Value], seed: int, why: str, **changes: str) -> Case:
    return replace(Case(tuple(dims.items()), seed=seed, why=why), **changes)  # type: ignore[arg-type]


def _hard(task: Task, workload: Workload, tiles: Tiles, seed: int) -> Iterator[Step]:
    """Yields all kinds of data, layouts and runs on one reduced shape."""
    case = _case(shapes.reduced(task, workload.dims, tiles, HOSTILE), seed, workload.name)
    for kind in KINDS:
        if kind not in SPECIAL or task.special_values:
            yield 1 if kind == "small integers" else 3, replace(case, data=kind), ()
    for layout in task.layouts:
        yield 2, replace(case, layout=layout), ()
    if task.in_place:
        yield 1, replace(case, run="in place"), (workload.name,)
    if not any(output.updates for output in task.outputs.values()):
        yield 2, replace(case, run="relaunched"), ()
    if not all(is_whole(spec.dtype) for spec in task.inputs.values()):
        yield 2, replace(case, run="caches"), ()


def _deep(task: Task, workloads: Sequence[Workload], tiles: Mapping[str, Tiles], seed: int) -> Iterator[Step]:
    """Yields one shape for each dimension that is not independent. In this shape, the dimension has its largest extent.

    The data has one sign. So a sum fails if its dtype is too narrow for the number of terms.
    """
    for name in dict.fromkeys(name for sizes in tiles.values() for name in sizes if name not in task.independent):
        having = [workload for workload in workloads if name in tiles[workload.name]]
        workload = max(having, key=lambda one: shapes.extent(one.dims, name))
        if (dims := shapes.deep(task, workload.dims, tiles[workload.name], name)) is not None:
            yield 2, _case(dims, seed, workload.name, data=FAR_FROM_ZERO), ()


def _edges(task: Task, workloads: Sequence[Workload], tiles: Mapping[str, Tiles], seed: int) -> Iterator[Step]:
    """Yields edge shapes and random shapes near the smallest reduced shape, once for each set of flags (``causal``)."""
    rng, seen = np.random.default_rng(seed), set[tuple[object, ...]]()
    for workload in workloads:
        sizes = tiles[workload.name]
        flags = tuple((name, value) for name, value in workload.dims.items() if name not in sizes)
        if flags in seen:
            continue
        seen.add(flags)
        dims = shapes.reduced(task, workload.dims, sizes, HOSTILE, most=1)
        for changed in shapes.edges(task, dims, sizes):
            yield 4, _case(changed, seed, "edge"), ()
        for changed in shapes.many_tiles(task, dims, sizes, rng):
            yield 2, _case(changed, seed, "many tiles"), ()
        for changed in shapes.hidden(task, dims, sizes, rng):
            yield 4, _case(changed, seed, "hidden"), ()
