"""Compiles and ranks more configurations than the space declares, to find the few that are worth racing.

Most kernels ship one configuration. For such a kernel, other tile sizes near the shipped ones and the configurations of
a template are compiled for the workload that takes longest; of a large declared space, those with the shipped hints and
any number of warps. The best of these are compiled again, with other compiler hints. The best with and without hints
are then compiled for every workload and ranked by the geometric mean of their predicted times. Of configurations with
equal machine code on all workloads, only one is kept. No kernel is run.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

from tilewright.compile.compile import WARP_HINTS, Compiled, ExpectedUs, Unit, compile_all
from tilewright.compile.screen import screen_compiled
from tilewright.compile.skipped import EXPECTED_OF
from tilewright.inspect.expected import ExpectedTimes
from tilewright.languages import language_of
from tilewright.playbook.analyses.configuration_sites import current
from tilewright.playbook.base import KernelFacts
from tilewright.race.stats import geometric_mean
from tilewright.records import Configuration, Screened, Value, Workload
from tilewright.space import knobs, templates
from tilewright.space.space import Space
from tilewright.task.task import Task

TILES = 32  # the most combinations of tile sizes that are compiled; 16 cores need about 3 s for them
DECLARED = 48  # a declared space up to this size is compiled whole; of a larger one, first without other hints
LEADERS = 4  # how many of the best predicted are compiled with hints
KNOWN = 3  # template configurations that are kept at any predicted time, because others measured them as fast
SECONDS = 5.0  # limit of one compiler run; most take 0.2 to 0.5 s, and kernels that take longer mostly spill
FINALISTS = 12  # configurations without hints, and as many with hints, that are compiled for all workloads
ALIKE = 3  # the most offered configurations that differ only in hints; several, because hints are hard to predict
SMALLEST, LARGEST = 16, 256  # tile extents worth trying
MOST_ELEMENTS = 131_072  # the most elements of a tile; larger tiles do not compile
SMALLEST_OF_PRODUCTS: Mapping[str, int] = {"M": 64, "N": 32, "K": 32}
"""The smallest tile along each axis of a product: wgmma takes 64 rows; 32 is the practical minimum for N and K."""

HINTS: tuple[Mapping[str, Value], ...] = (
    *({"occupancy": occupancy} for occupancy in (2, 4, 8)),
    *({"num_worker_warps": warps} for warps in (8, 4)),
    *({"occupancy": 2, "num_worker_warps": warps} for warps in (4, 8)),
    *({"num_ctas": ctas} for ctas in (2, 4)),
    {"occupancy": 2, "num_ctas": 2},
)
"""The hints to try. Occupancy 1 is omitted, because the compiler chooses it without a hint."""

_Known: TypeAlias = dict[tuple[str, Configuration], Compiled]
"""The configurations that were compiled before, by workload."""


def best_predicted(facts: KernelFacts, most: int, constants: Iterable[str]) -> tuple[Configuration, ...]:
    """Returns up to ``most`` configurations other than the incumbent's, the best predicted first.

    ``constants``: the knobs passed to the kernel that may change; hints may always change. Each configuration gives a
    value to every hint, even if the space lacks the hint. Compiles some dozens of candidates.
    """
    facts = replace(facts, task=widened(facts))
    space, shipped = facts.task.space, facts.task.space.shipped
    fixed = set(space.constants) - set(constants)
    first = [config for config in _first(facts) if all(config[name] == shipped[name] for name in fixed)]
    longest = max(facts.workloads, key=lambda workload: facts.bounds[workload.name].speed_of_light_us)
    plain = first
    if len(first) > DECLARED:
        same = [name for name in space.hints if name not in WARP_HINTS]  # with too few warps, large tiles spill
        plain = [config for config in first if all(config[name] == shipped[name] for name in same)]
    measured = [config for config in _allowed(facts, _templates(facts)) if config in first]
    known, expected_us = _Known(), _expected_us(facts, measured)
    tried = _ranked(facts, plain, [longest], known, expected_us)
    leaders = _distinct_constants(space, tried)[:LEADERS]
    alike = {_constants_of(space, leader) for leader in leaders}
    compiled = {*plain}
    left = [config for config in first if config not in compiled and _constants_of(space, config) in alike]
    hinted = _ranked(facts, [shipped, *left, *_hinted(facts, leaders)], [longest], known, expected_us)
    finalists = dict.fromkeys([shipped, *tried[:FINALISTS], *hinted[:FINALISTS], *measured])
    ranked = _ranked(facts, list(finalists), facts.workloads, known, expected_us, measured)
    kept = [config for config in ranked if config in measured][:KNOWN]
    rest = [config for config in _unalike(space, ranked) if config not in kept]
    offered = {*kept, *rest[: most - len(kept)]}
    return tuple(config for config in ranked if config in offered)


def _expected_us(facts: KernelFacts, measured: Collection[Configuration]) -> ExpectedUs | None:
    """Returns the ``expected_us`` of `compile_all`; None if kernels in this language have no expected times.

    The ``measured`` configurations have none, so they are always compiled.
    """
    if language_of(facts.launches[0].kernel).name not in EXPECTED_OF:
        return None

    @cache
    def of(workload: str) -> ExpectedTimes:
        return ExpectedTimes(facts.task, facts.task.workload(workload), facts.board)

    def us(unit: Unit) -> float | None:
        if unit.configuration in measured:
            return None
        return of(unit.workload.name).us([unit.configuration])[0]

    return us


def widened(facts: KernelFacts) -> Task:
    """Returns the task with every compiler hint in its space. The task ships the incumbent's configuration."""
    space, now = facts.task.space, current(facts)
    lists = {name: space.hints.get(name, (now[name],)) for name in now if name not in space.constants}
    wide = Space(
        constants=space.constants,
        hints=lists,
        shipped=now,
        where=[predicate.function for predicate in space.where],
        include=[now.replace(**dict(point)) for point in space.include],
        only=None if space.only is None else [now.replace(**dict(point)) for point in space.only],
    )
    return replace(facts.task, space=wide)


def tile_values(name: str, value: Value, facts: KernelFacts) -> tuple[int, ...]:
    """Returns the tile sizes to try instead of ``value``: its double and half first, then 4× and a quarter.

    Empty if the knob ``name`` is no tile size, or if a tensor's extent fixes the size.
    """
    if not knobs.is_tile(name) or not knobs.is_power_of_two(value) or _is_tied(name, value, facts):
        return ()
    assert isinstance(value, int)
    products = any(code.tensor_path != "none" for code in facts.codes.values())
    smallest = SMALLEST_OF_PRODUCTS.get(axis_of(name), SMALLEST) if products else SMALLEST
    low, high = min(smallest, value), max(LARGEST, 4 * value)
    return tuple(size for size in (value * 2, value // 2, value * 4, value // 4) if max(low, 1) <= size <= high)


def _is_tied(name: str, value: Value, facts: KernelFacts) -> bool:
    """Returns whether a tile size equals, in each workload, a tensor's extent rounded up to a power of two.

    Such a tile holds a whole row, so its size must not change. A tile size named after M, N or K is compared only with
    the workload's dimension of that name. For example, a TILE_N of 64 has nothing to do with a head dimension of 64.
    """
    axis = axis_of(name)

    def extents(workload: Workload) -> Iterator[Value]:
        if axis in ("M", "N", "K"):
            yield workload.dims.get(axis)
        else:
            yield from (extent for array in facts.task.arrays(workload.dims).values() for extent in array.shape)

    return all(
        any(type(extent) is int and 1 << max(extent - 1, 0).bit_length() == value for extent in extents(workload))
        for workload in facts.workloads
    )


def axis_of(name: str) -> str:
    """Returns the axis in the name of a tile size: ``M`` for ``TILE_M`` and ``BLOCK_SIZE_M``."""
    return name.upper().rpartition("_")[2]


def _first(facts: KernelFacts) -> list[Configuration]:
    """Returns the declared configurations. If only the shipped one is declared, adds some with other tile sizes."""
    space = facts.task.space
    declared = (config for workload in facts.workloads for config in space.configurations(facts.sm, workload.dims))
    others = [config for config in _allowed(facts, declared) if config != space.shipped]
    return [space.shipped, *(others or itertools.islice(_allowed(facts, _around(facts)), TILES))]


def _around(facts: KernelFacts) -> Iterator[Configuration]:
    """Yields the template's configurations, then other tile sizes, the nearest to the shipped sizes first."""
    yield from _templates(facts)
    shipped = facts.task.space.shipped
    sizes = {name: (shipped[name], *tile_values(name, shipped[name], facts)) for name in facts.task.space.constants}
    points = [dict(zip(sizes, point, strict=True)) for point in itertools.product(*sizes.values())]
    yield from (shipped.replace(**point) for point in sorted(points, key=lambda point: _steps(point, shipped)))


def _templates(facts: KernelFacts) -> tuple[Configuration, ...]:
    """Returns the configurations of the template that fits the kernel. Kernels with tiles named M, N and K are
    products. Kernels with tiles named M and N are attention."""
    axes = set(templates.knob_names(facts.task.space))
    name = "matmul" if {"M", "N", "K"} <= axes else "fmha" if {"M", "N"} <= axes else None
    if name is None:
        return ()
    return templates.place(facts.task.space, templates.template(name, facts.sm), facts.sm, facts.workloads[0].dims)


def _steps(point: Mapping[str, Value], shipped: Configuration) -> float:
    """Returns the distance between the shipped sizes and ``point``, counted in doublings. A halving counts as two
    doublings, so larger tiles are tried first: most kernels ship small tiles."""
    changed = [(value, shipped[name]) for name, value in point.items() if value != shipped[name]]
    ratios = [math.log2(value / before) for value, before in changed]  # type: ignore[operator]
    return sum(ratio if ratio > 0 else -2 * ratio for ratio in ratios)


def _hinted(facts: KernelFacts, leaders: Sequence[Configuration]) -> Iterator[Configuration]:
    """Yields each leader with each set of hints in `HINTS`. Skips a set that would change a hint for which the space
    lists several values."""
    space = facts.task.space
    free = {name for name in space.hints if len(space.known_values(name)) == 1}
    choices = [hints for hints in HINTS if set(hints) <= free]
    return _allowed(facts, (leader.replace(**hints) for leader in leaders for hints in choices))


def allowed(facts: KernelFacts, config: Configuration) -> bool:
    """Returns whether the incumbent's space and launch accept the configuration on all workloads."""
    return any(_allowed(facts, [config]))


def _allowed(facts: KernelFacts, configs: Iterable[Configuration]) -> Iterator[Configuration]:
    """Yields the distinct configurations that the space allows and the task can launch on all workloads."""
    for config in dict.fromkeys(configs):
        tiles = [value for name, value in config.items() if knobs.is_tile(name) and isinstance(value, int)]
        largest = math.prod(sorted(tiles)[-2:])
        if largest <= MOST_ELEMENTS and all(_launches(facts, config, workload.dims) for workload in facts.workloads):
            yield config


def _launches(facts: KernelFacts, config: Configuration, dims: Mapping[str, Value]) -> bool:
    task = facts.task
    if config != task.space.shipped and task.space.allows(config, facts.sm, dims) is not None:
        return False
    try:
        task.launched(config, dims, task.arrays(dims), facts.board)
    except Exception:  # the user's launch may raise anything for a configuration that the user did not foresee
        return False
    return True


def _ranked(
    facts: KernelFacts,
    configs: Sequence[Configuration],
    workloads: Sequence[Workload],
    known: _Known,
    expected_us: ExpectedUs | None,
    measured: Sequence[Configuration] = (),
) -> list[Configuration]:
    """Compiles configurations that are not ``known``, and sorts all by predicted time, the shortest first.

    Leaves out the incumbent, duplicates (equal machine code and grid), and configurations that do not compile, are
    expected to be slow, or are screened out. The ``measured`` configurations are known to be fast on a GPU, so they are
    kept even if they are screened out, unless they spill.
    """
    task = facts.task
    units = [Unit(workload, config, facts.board) for workload in workloads for config in configs]
    new = [unit for unit in units if (unit.workload.name, unit.configuration) not in known]
    for built in compile_all(task, new, seconds=SECONDS, unfit=False, expected_us=expected_us):
        known[built.unit.workload.name, built.unit.configuration] = built
    outcomes = []
    for workload in workloads:
        own = [known[workload.name, config] for config in configs]
        bound = facts.bounds[workload.name]
        outcomes.append(screen_compiled(task, workload, facts.board, bound, own))
    distinct: dict[object, tuple[bool, float, Configuration]] = {}
    for config in configs:
        screened = [outcome for each in outcomes if isinstance(outcome := each[config], Screened)]
        trusted = config in measured
        dropped = [row for row in screened if row.verdict == "out" and not (trusted and row.code.local_stores == 0)]
        if len(screened) < len(outcomes) or dropped:
            continue
        us = geometric_mean(row.predicted.us for row in screened)
        assert us is not None, "a task has workloads"
        dims = [workload.dims for workload in workloads]
        grids = tuple(task.launched(config, each, task.arrays(each), facts.board).grid for each in dims)
        last = any(row.verdict == "last" for row in screened)  # the screen put it last on a workload
        distinct.setdefault((tuple(row.code.code_hash for row in screened), grids), (last, us, config))
    rows = sorted(distinct.values(), key=lambda row: row[:2])
    return [config for _, _, config in rows if config != task.space.shipped]


def _distinct_constants(space: Space, configs: Sequence[Configuration]) -> list[Configuration]:
    """Returns the best configuration for each combination of constants.

    The shipped constants are always among the first `LEADERS`: perhaps only their hints need to change.
    """
    best: dict[tuple[Value, ...], Configuration] = {}
    for config in (*configs[: LEADERS - 1], space.shipped, *configs):
        best.setdefault(_constants_of(space, config), config)
    return list(best.values())


def _constants_of(space: Space, config: Configuration) -> tuple[Value, ...]:
    return tuple(config[name] for name in space.constants)


def _unalike(space: Space, configs: Sequence[Configuration]) -> Iterator[Configuration]:
    """Yields at most `ALIKE` configurations for each combination of constants, in the given order. Yields all if the
    space has no constants."""
    seen: Counter[tuple[Value, ...]] = Counter()
    for config in configs:
        key = _constants_of(space, config)
        seen[key] += 1
        if seen[key] <= ALIKE or not space.constants:
            yield config
