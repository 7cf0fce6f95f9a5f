"""Ships the Tile IR route of a Triton task, alone or together with a change of the source."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from tilewright.languages.triton.hints import ON_TILE_IR, ROUTE, TILE_IR
from tilewright.languages.triton.hints import on_tile_ir as is_on_tile_ir
from tilewright.playbook.analyses import task_code
from tilewright.playbook.analyses.configuration_sites import current
from tilewright.playbook.base import KernelFacts, unless_refused
from tilewright.records import Value
from tilewright.source.syntax import Source, argument

IGNORED = ("num_warps", "maxnreg")
"""The hints that only the PTX route uses."""


def with_route(source: Source, facts: KernelFacts, values: Sequence[str]) -> tuple[Value, ...]:
    """Returns the values of a change of the source, before them each on the Tile IR route if another is shipped."""
    if is_on_tile_ir(current(facts)) or unless_refused(on_tile_ir, source) is None:
        return tuple(values)
    return (*(value + ON_TILE_IR for value in values), *values)


def on_tile_ir(source: Source) -> Source:
    """Returns the source whose space ships ``route="tileir"``, without the hints that this route ignores.

    Raises `NotApplicable` if the space is not in this file.
    """
    source = task_code.with_knob(source, ROUTE.name, (TILE_IR,), TILE_IR, hint=True)
    shipped = argument(task_code.space_of(source), "shipped")
    for name in IGNORED:
        if isinstance(shipped, cst.Dict) and task_code.entry_of(shipped, name) is not None:
            source = task_code.with_knob(source, name, (None,), None, hint=True)
    return source
