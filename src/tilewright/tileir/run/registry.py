"""Registers the handlers. A handler is the function that runs an operation of Tile IR.

The handler of an operation without side effects takes arrays (`implements`). The handler of an operation that accesses
memory, runs a region or depends on the block also takes a `context.Context` (`implements_in_context`).

Blocks run in batches. A value is an array whose first axis is the blocks of a batch: ``lanes`` in the code, L in
shapes. The axis has length 1 if all blocks share the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewright.tileir.watch.arrays import Array as Array

Handler = Callable[..., Any]

PURE: dict[str, Handler] = {}
IN_CONTEXT: dict[str, Handler] = {}


class Unsupported(Exception):
    """The interpreter cannot run the kernel. The message names the operation and the case."""


class NeedsData(Exception):
    """An address or a branch depends on data, which a dry run does not have. The message names the operation."""


class Unknown:
    """A tile whose elements a dry run does not compute. ``shape`` includes the axis of blocks, of length 1."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)


Elements: TypeAlias = "Array | Unknown"


def implements(*names: str, table: dict[str, Handler] = PURE) -> Callable[[Handler], Handler]:
    """Registers ``handler(op, **operands)`` for operations without side effects."""

    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in PURE and name not in IN_CONTEXT, f"'{name}' is registered twice"
            table[name] = handler
        return handler

    return register


def implements_in_context(*names: str) -> Callable[[Handler], Handler]:
    """Registers ``handler(context, op, **operands)`` for operations that need the interpreter."""
    return implements(*names, table=IN_CONTEXT)
