"""Which function runs which operation, by the operation's name in the text of Tile IR.

Operations without effects are functions of arrays (`implements`); those that touch memory, run regions or depend on the
block get the interpreter's context too (`implements_in_context`). Values are arrays with a leading axis of blocks that
run together ("lanes"), of length 1 where all blocks share the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.tileir.watch.arrays import Array as Array

Handler = Callable[..., Any]

PURE: dict[str, Handler] = {}
IN_CONTEXT: dict[str, Handler] = {}


class Unsupported(Exception):
    """The interpreter does not run this; the message names the operation and the case."""


def implements(*names: str) -> Callable[[Handler], Handler]:
    """Registers ``handler(op, **operands)`` for operations without effects."""
    return _register(PURE, names)


def implements_in_context(*names: str) -> Callable[[Handler], Handler]:
    """Registers ``handler(context, op, **operands)`` for operations that need the interpreter."""
    return _register(IN_CONTEXT, names)


def _register(table: dict[str, Handler], names: tuple[str, ...]) -> Callable[[Handler], Handler]:
    def keep(handler: Handler) -> Handler:
        for name in names:
            assert name not in PURE and name not in IN_CONTEXT, f"'{name}' is registered twice"
            table[name] = handler
        return handler

    return keep


def lanes_of(*values: Array) -> int:
    return max((int(np.shape(value)[0]) for value in values), default=1)


class NeedsData(Exception):
    """Addresses or control flow depend on data, which a dry run does not have; the message names the operation."""


class Unknown:
    """A tile whose elements a dry run does not compute. ``shape`` has the leading axis, of length 1."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
