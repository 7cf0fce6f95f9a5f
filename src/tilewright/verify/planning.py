"""Which cases a check runs, the most telling first: when time runs out, the rest is named as unverified.

First every workload, reduced, on its declared data. Then the hardest of these shapes with every kind of data, every
layout and every way to run. Then edges and random values of all dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tilewright.records import Configuration, Value, Workload
from tilewright.task.task import Task
from tilewright.task.tensors import Dims, is_whole
from tilewright.verify import shapes
from tilewright.verify.addresses import huge
from tilewright.verify.cases import Case
from tilewright.verify.data import KINDS, SPECIAL
from tilewright.verify.shapes import Limit

HOSTILE = Limit(flop=shapes.WORK_FLOP / 2, elements=shapes.WORK_ELEMENTS // 2)
"""Of one case among many on one shape."""


@dataclass(frozen=True)
class Planned:
    configuration: Configuration
    case: Case
    rank: int
    covers: tuple[str, ...] = ()
    """Workloads that this case stands for: it must be correct."""


def plan(
    task: Task,
    configurations: Sequence[Configuration],
    workloads: Sequence[Workload],
    seed: int,
    *,
    own_shapes: bool = False,
    addresses: bool = False,
    quick: bool = False,
) -> list[Planned]:
    """The cases of all ``configurations``, the most telling first.

    own_shapes: also the workloads as they are, for an engine that can afford them.
    addresses: also a shape of more than 2³¹ elements, of which only the addresses are followed.
    quick: only reduced workloads and small integers.
    """
    planned: dict[tuple[Configuration, str], Planned] = {}
    for configuration in configurations:
        cases = list(_reduced(task, configuration, workloads, seed))
        hard = list(_hard(task, configuration, workloads, seed))
        cases += [step for step in hard if step[1].data == "small integers"] if quick else hard
        if not quick:
            cases += _shapes(task, configuration, workloads, seed)
            cases += _huge(task, configuration, workloads, seed) if addresses else ()
        if own_shapes:
            cases += [(1, _case(w.dims, seed, w.name), (w.name,)) for w in workloads]
        for rank, case, covers in cases:
            key = (configuration, str(case))
            if (before := planned.get(key)) is not None:
                planned[key] = replace(before, covers=tuple(dict.fromkeys((*before.covers, *covers))))
            else:
                planned[key] = Planned(configuration, case, rank, covers)
    return sorted(planned.values(), key=lambda step: step.rank)


Step = tuple[int, Case, tuple[str, ...]]
"""Rank, case, and the workloads that it covers."""


def _case(dims: Mapping[str, Value], seed: int, why: str, **changes: str) -> Case:
    return replace(Case(tuple(dims.items()), seed=seed, why=why), **changes)  # type: ignore[arg-type]


def _reduced(task: Task, configuration: Configuration, workloads: Sequence[Workload], seed: int) -> Iterator[Step]:
    for workload in workloads:
        tiles = shapes.moduli(task, configuration, workload.dims)
        dims = shapes.reduced(task, workload.dims, tiles)
        yield 0, _case(dims, seed, workload.name), (workload.name,)


def _hard(task: Task, configuration: Configuration, workloads: Sequence[Workload], seed: int) -> Iterator[Step]:
    """One shape for all data: that of the workload with the most ragged dimensions."""
    workload = max(workloads, key=partial(_raggedness, task, configuration))
    tiles = shapes.moduli(task, configuration, workload.dims)
    case = _case(shapes.reduced(task, workload.dims, tiles, HOSTILE), seed, workload.name)
    for kind in KINDS:
        if kind not in SPECIAL or task.special_values:
            yield 1 if kind == "small integers" else 3, replace(case, data=kind), ()
    for layout in task.layouts:
        yield 2, replace(case, layout=layout), ()
    if any(output.in_place_of for output in task.outputs.values()):
        yield 1, replace(case, run="in place"), (workload.name,)
    if not any(output.updates for output in task.outputs.values()):
        yield 2, replace(case, run="relaunched"), ()
    if not all(is_whole(spec.dtype) for spec in task.inputs.values()):
        yield 2, replace(case, run="caches"), ()


def _huge(task: Task, configuration: Configuration, workloads: Sequence[Workload], seed: int) -> Iterator[Step]:
    workload = max(workloads, key=partial(_raggedness, task, configuration))
    dims = huge(task, workload.dims, shapes.moduli(task, configuration, workload.dims))
    if dims is not None:
        yield 2, _case(dims, seed, "huge", run="addresses"), ()


def _raggedness(task: Task, configuration: Configuration, workload: Workload) -> int:
    tiles = shapes.moduli(task, configuration, workload.dims)
    return sum(shapes.extent(workload.dims, name) % size.least != 0 for name, size in tiles.items())


def _shapes(task: Task, configuration: Configuration, workloads: Sequence[Workload], seed: int) -> Iterator[Step]:
    """Edges and hidden draws about the smallest reduced shape, for each choice of the other dimensions."""
    rng, seen = np.random.default_rng(seed), set[tuple[object, ...]]()
    for workload in workloads:
        tiles = shapes.moduli(task, configuration, workload.dims)
        flags = tuple((name, value) for name, value in workload.dims.items() if name not in tiles)
        if flags in seen:
            continue
        seen.add(flags)
        dims: Dims = shapes.reduced(task, workload.dims, tiles, HOSTILE, most=1)
        for changed in shapes.edges(task, dims, tiles):
            yield 4, _case(changed, seed, "edge"), ()
        for changed in shapes.hidden(task, dims, tiles, rng):
            yield 4, _case(changed, seed, "hidden"), ()
