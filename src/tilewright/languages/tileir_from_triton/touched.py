"""Finds the arrays that a kernel reads and writes in its TTIR. The kernel need not be translatable."""

from __future__ import annotations

from functools import lru_cache

from tilewright.errors import ToolFailed
from tilewright.languages.tileir_from_triton.aliasing import Aliases
from tilewright.languages.tileir_from_triton.generic import generic_text
from tilewright.languages.tileir_from_triton.reader import read_ttir
from tilewright.languages.tileir_from_triton.ttir import TtirOp


def kernels_of(module: TtirOp) -> list[TtirOp]:
    """Returns the kernels of a module: its public functions."""
    functions = [op for op in module.body().ops if op.name == "tt.func"]
    return [op for op in functions if op.attributes.get("sym_visibility", "public") == "public"]


@lru_cache(maxsize=64)
def touched_parameters(ttir: str, count: int) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the positions of the parameters whose arrays are read, and of those whose arrays are written.

    An array in the result may be untouched; an array that is not in the result is never touched. Raises ToolFailed if
    the TTIR cannot be read, or does not have ``count`` parameters.
    """
    try:
        (function,) = kernels_of(read_ttir(generic_text(ttir)))
        parameters = function.regions[0][0].arguments
        if len(parameters) != count:  # Triton has replaced descriptors by pointers
            raise ToolFailed(f"the TTIR has {len(parameters)} parameters, the launch {count} arguments")
        return Aliases(function, range(1, 1 + count)).touched(function)
    except (ValueError, LookupError, TypeError) as error:
        raise ToolFailed(f"TTIR cannot be read: {error}") from error
