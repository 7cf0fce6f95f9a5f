"""All operations that the interpreter runs: importing this registers every handler."""

from __future__ import annotations

from tilewright.tileir.run import (
    arithmetic,
    assumptions,
    conversions,
    integers,
    pointers,
    products,
    reductions,
    tiles,
    views,
)
from tilewright.tileir.run.control import CONTROL, TERMINATORS
from tilewright.tileir.run.registry import IN_CONTEXT, PURE

HANDLERS = (
    arithmetic, assumptions, conversions, integers, pointers, products, reductions, tiles, views,
)  # fmt: skip
"""The modules whose import registers handlers."""

IMPLEMENTED = frozenset({*PURE, *IN_CONTEXT, *CONTROL, *TERMINATORS})
"""Names of the operations that run; any other is refused before a block starts."""
