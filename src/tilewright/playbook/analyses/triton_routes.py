"""Changes the shipped route of a Triton task.

A route is the way from Triton source to machine code: by PTX, Triton's own compiler, or by Tile IR, cuTile's compiler.
Each route has its own best tile sizes and hints. A hint that was tuned for one route is wrong for the other: Triton's
``num_stages=3`` is a latency for cuTile's compiler. So a route is tried with a `field` of configurations at once, and
its best form is compared with the incumbent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import libcst as cst

from tilewright.hardware.architectures import architecture
from tilewright.languages.triton.hints import PTX, ROUTE, TILE_IR
from tilewright.languages.triton.hints import on_tile_ir as is_on_tile_ir
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.best_predicted import allowed, axis_of, tile_values
from tilewright.playbook.analyses.configuration_sites import current, read_changes, written_in_space
from tilewright.playbook.base import Entry, KernelFacts, Site, unless_refused
from tilewright.records import Configuration, Value
from tilewright.source.syntax import Source, argument

Changes = dict[str, Value]
OWN_HINTS: Mapping[str, tuple[str, ...]] = {
    PTX: ("num_warps", "num_stages", "maxnreg"),
    TILE_IR: ("num_worker_warps", "num_stages", "num_ctas", "occupancy"),
}
"""Route → the hints whose values belong to it. A change of the route removes those of the route that it leaves."""
MOST_ELEMENTS = {4: 128 * 128, 8: 128 * 256}
"""Number of warps → the most elements of a product's tile that they can hold in registers. With more, the code spills:
3,033 instead of 203 µs for a tile of 128 × 256 and four warps, which cuTile's compiler takes by default, on an H200."""
PTX_STAGES, LATENCIES = (3, 4), (None, 6)
OCCUPANCIES, ROW_WARPS = (None, 2, 4), (4, 8, 16)
"""The values to try for kernels without products."""
ROWS_PROMISE = 0.2
"""The promise of another route for a kernel without products: the routes differ less there."""


def on_route(source: Source, route: str, changes: Mapping[str, Value] | None = None) -> Source:
    """Returns the source that ships ``route`` with these ``changes``, and no hint that was tuned for another route.

    Raises `NotApplicable` if the space is not in this file.
    """
    source = task_code.with_knob(source, ROUTE.name, (route,), route, hint=True)
    shipped = argument(task_code.space_of(source), "shipped")
    for name in dict.fromkeys(name for other, names in OWN_HINTS.items() if other != route for name in names):
        if isinstance(shipped, cst.Dict) and task_code.entry_of(shipped, name) is not None:
            source = task_code.with_knob(source, name, (None,), None, hint=True)
    return Source(source.name, written_in_space(source, changes)) if changes else source


# The configurations to try on a route -------------------------------------------------------------


def field(facts: KernelFacts, route: str) -> tuple[Changes, ...]:
    """Returns the configurations to try on ``route``: changes of tile sizes and of the route's hints.

    A product is tried with the incumbent's tile, and with tiles of two and four times its size. A hint that is not
    named is left to the compiler.
    """
    if not _has_products(facts):
        return tuple(map(_given, _hints_of_rows(route)))
    shipped = facts.task.space.shipped
    return tuple(
        {**tiles, **_given(hints)}
        for tiles, elements in _tiles(facts)
        if not tiles or allowed(facts, shipped.replace(**tiles))
        for hints in _hints_of_products(facts, route, elements)
    )


def _has_products(facts: KernelFacts) -> bool:
    return any(code.tensor_path != "none" for code in facts.codes.values())


def _given(hints: Changes) -> Changes:
    return {name: value for name, value in hints.items() if value is not None}


def _tiles(facts: KernelFacts) -> Iterator[tuple[Changes, int]]:
    """Yields sizes along M and N: the shipped ones, and twice as large along one or both; with the tile's elements."""
    shipped = facts.task.space.shipped
    sizes: dict[str, tuple[int, ...]] = {}
    for name in facts.task.space.constants:
        if axis_of(name) in ("M", "N") and isinstance(size := shipped[name], int):
            sizes[name] = (size, 2 * size) if 2 * size in tile_values(name, size, facts) else (size,)
    for point in itertools.product(*sizes.values()):
        chosen = dict(zip(sizes, point, strict=True))
        yield {name: extent for name, extent in chosen.items() if extent != shipped[name]}, math.prod(point)


def _hints_of_products(facts: KernelFacts, route: str, elements: int) -> Iterator[Changes]:
    if route == PTX:
        for count, stages in itertools.product((4, 8), PTX_STAGES):
            if elements <= MOST_ELEMENTS[count]:
                yield {"num_warps": count, "num_stages": stages}
        return
    pairs = elements > MOST_ELEMENTS[4] and 2 in architecture(facts.board.arch).clusters
    clusters: tuple[int | None, ...] = (None, 2) if pairs else (None,)
    for ctas, latency, warps in itertools.product(clusters, LATENCIES, (8, None)):
        if elements // (ctas or 1) <= MOST_ELEMENTS[warps or 4]:
            yield {"num_ctas": ctas, "num_stages": latency, "num_worker_warps": warps}


def _hints_of_rows(route: str) -> Iterator[Changes]:
    if route == PTX:
        for count in ROW_WARPS:
            yield {"num_warps": count}
        return
    for occupancy, warps in itertools.product(OCCUPANCIES, (None, 8)):
        yield {"occupancy": occupancy, "num_worker_warps": warps}


class OtherRoute(Entry):
    """An entry that changes the route from ``leaves`` to ``route``, and nothing else of the source."""

    leaves: str
    route: str

    def sites(self, source: Source, facts: KernelFacts) -> list[Site]:
        spaces = source.calls_named("Space")
        now = TILE_IR if is_on_tile_ir(current(facts)) else PTX
        if now != self.leaves or len(spaces) != 1 or unless_refused(on_route, source, self.route) is None:
            return []
        values = tuple(str(Configuration.of({ROUTE.name: self.route, **each})) for each in field(facts, self.route))
        promise = 1.0 if _has_products(facts) else ROWS_PROMISE
        return [Site(facts.kernel, *source.place(spaces[0]), "route in space", values, promise)]

    def apply(self, source: Source, site: Site, value: Value) -> str:
        site.node(source, source.every(cst.Call), "no space begins here")
        return on_route(source, self.route, read_changes(str(value))).text
