"""Finds the loads and stores in tile code. Some entries set a keyword argument of these calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.analyses.dataflow import loops_around
from tilewright.playbook.base import Site
from tilewright.source.syntax import Expression, Source, argument, dotted, with_argument

LOADS = ("load", "gather")
KINDS = (*LOADS, "store", "scatter")
MOST = 4  # the most accesses of a file that get their own sites


@dataclass(frozen=True)
class ArrayAccess:
    """A call in tile code that reads or writes an array.

    ``kind`` is ``load``, ``store``, ``gather`` or ``scatter``. ``depth`` counts the loops around the call.
    """

    call: cst.Call
    kernel: str
    kind: str
    array: str
    depth: int

    @property
    def is_load(self) -> bool:
        return self.kind in LOADS

    def keyword(self, name: str) -> Expression | None:
        return argument(self.call, name)

    def __str__(self) -> str:
        return f"{self.kind} of {self.array}"


def accesses(source: Source, kinds: Sequence[str] = KINDS) -> list[ArrayAccess]:
    """Returns the accesses of these ``kinds`` in the tile code: the most deeply nested first, then in text order."""
    found = []
    for kind in kinds:
        for call in source.calls(kind):
            array = argument(call, "array", 0)
            name = "?" if array is None else source.code(array)
            found.append(ArrayAccess(call, source.function_of(call), kind, name, loops_around(source, call)))
    return sorted(found, key=lambda access: (-access.depth, source.place(access.call)))


def at(source: Source, site: Site, kinds: Sequence[str] = KINDS) -> list[ArrayAccess]:
    """Returns the access that begins at ``site``. If a function begins there, returns all accesses in the function.

    Raises `NotApplicable` if there is no access of these ``kinds``.
    """
    place, listed = (site.line, site.column), accesses(source, kinds)
    here = [access for access in listed if source.place(access.call) == place]
    function = source.tile_code.get(site.kernel)
    if not here and function is not None and source.place(function) == place:
        here = [access for access in listed if access.kernel == site.kernel]
    if not here:
        raise site.refused(source, f"no {' or '.join(kinds)} begins here")
    return here


def with_keyword(source: Source, chosen: Sequence[ArrayAccess], name: str, value: str | None) -> str:
    """Returns the text with the keyword argument ``name`` of the ``chosen`` calls set to ``value``; None removes it."""

    def with_value(call: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(call, cst.Call)
        return with_argument(call, name, value)

    return source.replaced({access.call: with_value for access in chosen})


def is_variable(node: Expression | None) -> bool:
    """Returns whether a keyword argument is set to a variable. Its value is then chosen elsewhere."""
    return node is not None and dotted(node) not in ("", "True", "False", "None")
