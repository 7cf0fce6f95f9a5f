"""Ships the Tile IR route of a Triton task."""

from __future__ import annotations

import libcst as cst

from tilewright.playbook.analyses import task_code
from tilewright.source.syntax import Source, argument

IGNORED = ("num_warps", "maxnreg")
"""The hints that only the PTX route uses."""


def on_tile_ir(source: Source) -> Source:
    """Returns the source whose space ships ``route="tileir"``, without the hints that this route ignores.

    Raises `NotApplicable` if the space is not in this file.
    """
    source = task_code.with_knob(source, "route", ("tileir",), "tileir", hint=True)
    shipped = argument(task_code.space_of(source), "shipped")
    for name in IGNORED:
        if isinstance(shipped, cst.Dict) and task_code.entry_of(shipped, name) is not None:
            source = task_code.with_knob(source, name, (None,), None, hint=True)
    return source
