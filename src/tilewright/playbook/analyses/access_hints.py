"""Loads and stores as the entries that set a keyword of theirs see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import libcst as cst

from tilewright.playbook.base import NotApplicable, Site
from tilewright.source.syntax import Source, argument, dotted, with_argument

LOADS, STORES = ("load", "gather"), ("store", "scatter")
MOST = 4
"""Single accesses of a kernel that are sites of their own."""


@dataclass(frozen=True)
class ArrayAccess:
    """One call that reads or writes an array, in tile code."""

    call: cst.Call
    kernel: str
    line: int
    column: int
    kind: str
    """``load``, ``store``, ``gather`` or ``scatter``."""
    array: str
    depth: int
    """Loops around it."""

    @property
    def is_load(self) -> bool:
        return self.kind in LOADS

    def keyword(self, name: str) -> cst.BaseExpression | None:
        return argument(self.call, name)

    def __str__(self) -> str:
        return f"{self.kind} of {self.array}"


def accesses(source: Source, kinds: Sequence[str] = (*LOADS, *STORES)) -> list[ArrayAccess]:
    """The accesses of the tile code, those in the innermost loops first, then in the order of the text."""
    found = []
    for kind in kinds:
        for call in source.calls(kind):
            line, column = source.place(call)
            array = argument(call, "array", 0)
            depth = sum(isinstance(one, (cst.For, cst.While)) for one in source.parents(call))
            name = "?" if array is None else source.code(array)
            found.append(ArrayAccess(call, source.function_of(call), line, column, kind, name, depth))
    return sorted(found, key=lambda one: (-one.depth, one.line, one.column))


def hottest(found: Iterable[ArrayAccess]) -> list[ArrayAccess]:
    """Those in the innermost loops of each function, and as many others as make up `MOST`."""
    return list(found)[:MOST]


def at(source: Source, site: Site, kinds: Sequence[str]) -> list[ArrayAccess]:
    """The access that begins at the site, or all of the function that does. Raises `NotApplicable`."""
    listed = accesses(source, kinds)
    here = [one for one in listed if (one.line, one.column) == (site.line, site.column)]
    function = source.tile_code.get(site.kernel)
    if not here and function is not None and source.place(function) == (site.line, site.column):
        here = [one for one in listed if one.kernel == site.kernel]
    if not here:
        raise NotApplicable(f"{source.name}:{site.line}: no {' or '.join(kinds)} stands here")
    return here


def with_keyword(source: Source, chosen: Sequence[ArrayAccess], name: str, value: str | None) -> str:
    """The text with a keyword of these calls set, or taken away with None."""
    text, places = source.text, [(one.line, one.column, one.kind) for one in chosen]
    for place in sorted(places, reverse=True):  # from the end, so that the places before stay where they are
        current = Source(source.name, text)
        call = next(one.call for one in accesses(current, (place[2],)) if (one.line, one.column) == place[:2])
        text = current.replaced({call: with_argument(call, name, value)})
    return text


def is_variable(node: cst.BaseExpression | None) -> bool:
    """Whether a keyword is given by something that is chosen elsewhere."""
    return node is not None and bool(dotted(node)) and dotted(node) not in ("True", "False", "None")
