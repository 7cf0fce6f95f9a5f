"""Changes the shipped route of a Triton task to Tile IR, alone or together with a change of the source.

A route is the way from Triton source to machine code: by PTX (Triton's own compiler), or by Tile IR (cuTile's
compiler).
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.languages.cutile.hints import NUM_WORKER_WARPS
from tilewright.languages.triton.hints import ON_TILE_IR, ROUTE, TILE_IR
from tilewright.languages.triton.hints import on_tile_ir as is_on_tile_ir
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.configuration_sites import current
from tilewright.playbook.base import KernelFacts, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Source, argument

IGNORED = ("num_warps", "maxnreg")
"""The hints that only the PTX route uses."""
MANY_WARPS = 8
WITH_MANY_WARPS = f" with {MANY_WARPS} worker warps"
"""The suffix of a value for the Tile IR route with 8 warps. By default the compiler takes 4 warps, and large tiles then
spill (3,033 instead of 203 µs for 128 × 256 on an H200)."""


def with_route(source: Source, facts: KernelFacts, changes: Sequence[str]) -> tuple[Value, ...]:
    """Returns the values of a site for ``changes`` of the source.

    If the task ships another route than Tile IR, there are three values for each change. They are: on Tile IR with the
    compiler's number of warps, on Tile IR with 8 warps, and on the shipped route.
    """
    if is_on_tile_ir(current(facts)) or unless_refused(on_tile_ir, source) is None:
        return tuple(changes)
    routes = (ON_TILE_IR, WITH_MANY_WARPS + ON_TILE_IR, "")
    return tuple(change + route for route in routes for change in changes)


def change_in(value: Value) -> str:
    """Returns the change of the source that a value from `with_route` contains."""
    return str(value).removesuffix(ON_TILE_IR).removesuffix(WITH_MANY_WARPS)


def routed(source: Source, value: Value) -> Source:
    """Returns the source on the route that a value from `with_route` names."""
    if not str(value).endswith(ON_TILE_IR):
        return source
    source = on_tile_ir(source)
    if not str(value).endswith(WITH_MANY_WARPS + ON_TILE_IR):
        return source
    return task_code.with_knob(source, NUM_WORKER_WARPS.name, (MANY_WARPS,), MANY_WARPS, hint=True)


def on_tile_ir(source: Source) -> Source:
    """Returns the source with ``route="tileir"`` in the shipped configuration, without the hints that this route
    ignores.

    Raises `NotApplicable` if the space is not in this file.
    """
    source = task_code.with_knob(source, ROUTE.name, (TILE_IR,), TILE_IR, hint=True)
    shipped = argument(task_code.space_of(source), "shipped")
    for name in IGNORED:
        if isinstance(shipped, cst.Dict) and task_code.entry_of(shipped, name) is not None:
            source = task_code.with_knob(source, name, (None,), None, hint=True)
    return source
