"""Compiles, reads and ranks the configurations of a widened space, to find the few that are worth racing.

A kernel that ships one configuration, as most do, is tried with tile sizes around it and with rows of the templates.
The best of those are tried with compiler hints, first on the workload that takes longest. The best of all are compiled
for every workload and ranked by the geometric mean of the predicted times. Configurations with equal machine code in
all workloads count as one. Nothing runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.compile.compile import Unit, compile_all
from tilewright.compile.screen import screen_compiled
from tilewright.playbook.analyses.configuration_sites import current
from tilewright.playbook.base import KernelFacts
from tilewright.race.stats import geometric_mean
from tilewright.records import Configuration, Screened, Value, Workload
from tilewright.space import knobs, templates
from tilewright.space.space import Space
from tilewright.task.task import Task

TILES = 32
"""The most tile sizes that are compiled; 16 cores need about 3 s for them."""
LEADERS = 4
"""How many of the best predicted are compiled with hints."""
KNOWN = 3
"""Rows of the templates that are offered though others are predicted better, because they were measured."""
SECONDS = 5.0
"""For one compiler run. One that takes longer mostly spills; others take 0.2 to 0.5 s."""
FINALISTS = 12
"""How many of those with tiles alone, and of those with hints, are compiled for the other workloads too."""
ALIKE = 3
"""Configurations with the same constants among those returned, because predictions for hints are the least sure."""
SMALLEST, LARGEST, MOST_ELEMENTS = 16, 256, 131_072
"""Tile extents worth trying, and elements of a tile that still compile."""
SMALLEST_OF_PRODUCTS: Mapping[str, int] = {"M": 64, "N": 32, "K": 32}
"""Along the axes of a product: wgmma takes 64 rows, and 32 is the practical minimum of the others."""

HINTS: tuple[Mapping[str, Value], ...] = (
    *({"occupancy": occupancy} for occupancy in (2, 4, 8)),
    *({"num_worker_warps": warps} for warps in (8, 4)),
    *({"occupancy": 2, "num_worker_warps": warps} for warps in (4, 8)),
    *({"num_ctas": ctas} for ctas in (2, 4)),
    {"occupancy": 2, "num_ctas": 2},
)
"""Without occupancy 1, which is what the compiler chooses."""


def best_predicted(facts: KernelFacts, most: int, constants: Iterable[str]) -> tuple[Configuration, ...]:
    """Up to ``most`` configurations other than the incumbent's, the best predicted first.

    ``constants`` are the knobs passed to the kernel that may change; hints always may. The configurations name
    also the hints that the space lacks. Compiles some dozens of candidates.
    """
    task = widened(facts)
    free = set(constants)
    fixed = [name for name in task.space.constants if name not in free]
    shipped = task.space.shipped
    first = [config for config in _first(facts, task) if all(config[name] == shipped[name] for name in fixed)]
    longest = max(facts.workloads, key=lambda one: facts.bounds[one.name].speed_of_light_us)
    tried = _ranked(facts, task, first, [longest])
    leaders = _distinct_constants(task.space, tried)[:LEADERS]
    hinted = _ranked(facts, task, [shipped, *_hinted(facts, task, leaders)], [longest])
    known = [config for config in _allowed(facts, task, _templates(facts, task)) if config in first]
    best = [shipped, *tried[:FINALISTS], *hinted[:FINALISTS]]
    both = _ranked(facts, task, list(dict.fromkeys([*best, *known])), facts.workloads, known)
    known = [config for config in both if config in known][:KNOWN]
    rest = [config for config in _unalike(task.space, both) if config not in known]
    offered = {*known, *rest[: most - len(known)]}
    return tuple(config for config in both if config in offered)


def widened(facts: KernelFacts) -> Task:
    """The task with all compiler hints in its space; what it ships is what runs today."""
    space, now = facts.task.space, current(facts)
    lists = {name: space.hints.get(name, (now[name],)) for name in now if name in knobs.HINTS}
    wide = Space(
        constants=space.constants,
        hints=lists,  # type: ignore[arg-type]
        shipped=now,
        where=[one.function for one in space.where],
        include=[now.replace(**dict(point)) for point in space.include],
        only=None if space.only is None else [now.replace(**dict(point)) for point in space.only],
    )
    return replace(facts.task, space=wide)


def tile_values(name: str, value: Value, facts: KernelFacts) -> tuple[int, ...]:
    """Sizes around a tile size, its half and double first; none where the extent of a tensor fixes it."""
    if not knobs.is_tile(name) or not knobs.is_power_of_two(value) or is_tied(name, value, facts):
        return ()
    assert isinstance(value, int)
    products = any(code.tensor_path != "none" for code in facts.codes.values())
    smallest = SMALLEST_OF_PRODUCTS.get(_axis(name), SMALLEST) if products else SMALLEST
    low, high = min(smallest, value), max(LARGEST, 4 * value)
    near = (value * 2, value // 2, value * 4, value // 4)
    return tuple(size for size in near if low <= size <= high and size >= 1)


def is_tied(name: str, value: Value, facts: KernelFacts) -> bool:
    """Whether a tile size is some extent of each workload, rounded up: a tile of a whole row stays one.

    M, N and K are what the tiles of a product and of attention run over, so those are tied by the dimension of
    that name alone: a TILE_N of 64 is not the head's dimension of 64.
    """
    axes = {"M", "N", "K"} & {_axis(name)}
    return isinstance(value, int) and all(
        any(1 << max(extent - 1, 0).bit_length() == value for extent in _extents(facts, workload, axes))
        for workload in facts.workloads
    )


def _axis(name: str) -> str:
    """``M`` of ``TILE_M`` and ``BLOCK_SIZE_M``."""
    return name.upper().rpartition("_")[2]


def _extents(facts: KernelFacts, workload: Workload, axes: set[str]) -> Iterator[int]:
    if axes:
        named = (workload.dims.get(axis) for axis in axes)
        yield from (one for one in named if isinstance(one, int) and not isinstance(one, bool))
    else:
        yield from (extent for array in facts.task.arrays(workload.dims).values() for extent in array.shape)


# What is compiled ---------------------------------------------------------------------------------


def _first(facts: KernelFacts, task: Task) -> list[Configuration]:
    """The declared space; if that is only the shipped configuration, tile sizes around it."""
    shipped, all_dims = task.space.shipped, [workload.dims for workload in facts.workloads]
    declared = (config for dims in all_dims for config in task.space.configurations(facts.sm, dims))
    others = [config for config in _allowed(facts, task, declared) if config != shipped]
    return [shipped, *(others or itertools.islice(_allowed(facts, task, _around(facts, task)), TILES))]


def _around(facts: KernelFacts, task: Task) -> Iterator[Configuration]:
    """Rows of the templates, then tile sizes by their number of halvings and doublings."""
    space = task.space
    yield from _templates(facts, task)
    sizes = {name: (space.shipped[name], *tile_values(name, space.shipped[name], facts)) for name in space.constants}
    points = [dict(zip(sizes, point, strict=True)) for point in itertools.product(*sizes.values())]
    yield from (space.shipped.replace(**point) for point in sorted(points, key=lambda p: _steps(p, space.shipped)))


def _templates(facts: KernelFacts, task: Task) -> tuple[Configuration, ...]:
    """The rows for a product if the kernel has tiles M, N and K, and for attention if it has M and N."""
    names = set(templates.knob_names(task.space))
    name = "matmul" if {"M", "N", "K"} <= names else "fmha" if {"M", "N"} <= names else None
    return templates.seed(task.space, name, facts.sm, facts.workloads[0].dims) if name else ()


def _steps(point: Mapping[str, Value], shipped: Configuration) -> float:
    """The distance of a point. A halving counts as two doublings, because kernels are written with small tiles."""
    changed = [(value, shipped[name]) for name, value in point.items() if value != shipped[name]]
    ratios = [math.log2(value / before) for value, before in changed]  # type: ignore[operator]
    return sum(ratio if ratio > 0 else -2 * ratio for ratio in ratios)


def _hinted(facts: KernelFacts, task: Task, leaders: Sequence[Configuration]) -> Iterator[Configuration]:
    """The leaders with hints that the space does not name, or leaves to the compiler."""
    space = task.space
    open_ = {name for name in space.hints if len(space.known_values(name)) == 1}
    choices = [hints for hints in HINTS if set(hints) <= open_]
    yield from _allowed(facts, task, (leader.replace(**hints) for leader in leaders for hints in choices))


def allowed(facts: KernelFacts, config: Configuration) -> bool:
    """Whether the incumbent's space and launch take the configuration on all workloads."""
    return any(_allowed(facts, facts.task, [config]))


def _allowed(facts: KernelFacts, task: Task, configs: Iterable[Configuration]) -> Iterator[Configuration]:
    """The distinct configurations that the space allows and the task launches on all workloads."""
    for config in dict.fromkeys(configs):
        tiles = [value for name, value in config.items() if knobs.is_tile(name) and isinstance(value, int)]
        largest = math.prod(sorted(tiles)[-2:])
        launched = (_launches(facts, task, config, workload.dims) for workload in facts.workloads)
        if largest <= MOST_ELEMENTS and all(launched):
            yield config


def _launches(facts: KernelFacts, task: Task, config: Configuration, dims: Mapping[str, Value]) -> bool:
    if config != task.space.shipped and task.space.allows(config, facts.sm, dims) is not None:
        return False
    try:
        task.launched(config, dims, task.arrays(dims), facts.board)
    except Exception:  # also of the task's own code, which never saw this configuration
        return False
    return True


# What is offered ----------------------------------------------------------------------------------


def _ranked(
    facts: KernelFacts,
    task: Task,
    configs: Sequence[Configuration],
    workloads: Sequence[Workload],
    known: Sequence[Configuration] = (),
) -> list[Configuration]:
    """Those that compile and are not screened out, distinct from the incumbent and each other, best first.

    Of ``known`` the screen drops only what spills: a measurement somewhere says more than its prediction.
    """
    units = [Unit(workload, config, facts.board) for workload in workloads for config in configs]
    compiled = compile_all(task, units, seconds=SECONDS)
    outcomes = []
    for workload in workloads:
        own = [one for one in compiled if one.unit.workload.name == workload.name]
        bound = facts.bounds[workload.name]
        outcomes.append(screen_compiled(task, workload, facts.board, bound, own))
    distinct: dict[object, tuple[bool, float, Configuration]] = {}
    for config in configs:
        screened = [said for one in outcomes if isinstance(said := one[config], Screened)]
        spared = [one for one in screened if config in known and one.code.local_stores == 0]
        if len(screened) < len(outcomes) or any(one.verdict == "out" and one not in spared for one in screened):
            continue
        us = geometric_mean(one.predicted.us for one in screened)
        assert us is not None, "a task has workloads"
        codes = tuple(one.code.code_hash for one in screened)
        grids = tuple(task.launched(config, one.dims, task.arrays(one.dims), facts.board).grid for one in workloads)
        last = any(one.verdict == "last" for one in screened)  # the screen put it last on a workload
        distinct.setdefault((codes, grids), (last, us, config))  # the same code and grid on every workload
    rows = sorted(distinct.values(), key=lambda row: row[:2])
    return [config for _, _, config in rows if config != task.space.shipped]


def _distinct_constants(space: Space, configs: Sequence[Configuration]) -> list[Configuration]:
    """The best of each set of constants, and the shipped one among them, since hints may be all it needs."""
    best: dict[tuple[Value, ...], Configuration] = {}
    for config in (*configs[: LEADERS - 1], space.shipped, *configs):
        best.setdefault(tuple(config[name] for name in space.constants), config)
    return list(best.values())


def _unalike(space: Space, configs: Sequence[Configuration]) -> Iterator[Configuration]:
    seen: dict[tuple[Value, ...], int] = {}
    for config in configs:
        key = tuple(config[name] for name in space.constants)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= ALIKE or not space.constants:
            yield config
