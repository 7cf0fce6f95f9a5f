"""Reads the hints with which a search's caller launches the kernel, from the caller's source.

Some code, such as TileGym's attention, searches without ``hints_fn`` and then launches
``kernel.replace_hints(occupancy=2)``, so the search times another kernel than the caller launches. Trials therefore get
these hints too, but only certain ones: the caller sets the kernel's hints to literal integers once, after the search,
and never uses the kernel there without them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from tilewright.source.cutile import HintedKernel, SearchSite, as_hinted
from tilewright.source.source_file import SourceFile, source_of_object
from tilewright.source.values import called_name

SEARCH = "exhaustive_search"
HINTING = ("replace_hints", "cached_replace_hints")
FRAMES = 4
"""Most stack frames to look at, because functions that log may wrap the search."""


@dataclass(frozen=True)
class HintedSearch:
    """One call of a search in a function: its lines, the name of its kernel, and the hints launched after it."""

    first_line: int
    last_line: int
    kernel: str
    hints: tuple[tuple[str, int], ...]


def launched_hints(caller: FrameType | None, kernel: Any) -> Mapping[str, int]:
    """The hints that ``caller`` launches ``kernel`` with after its search; empty if they are not certain."""
    frame = caller
    for _ in range(FRAMES):
        if frame is None:
            break
        for search in searches_of(frame.f_code):
            is_current = search.first_line <= frame.f_lineno <= search.last_line
            if is_current and _value(frame, search.kernel) is kernel:
                return dict(search.hints)
        frame = frame.f_back
    return {}


def _value(frame: FrameType, dotted: str) -> Any:
    first, *rest = dotted.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for name in rest:
        value = getattr(value, name, None)
    return value


@lru_cache(maxsize=256)
def searches_of(code: CodeType) -> tuple[HintedSearch, ...]:
    """The searches in a function's source that a launch with certain hints follows."""
    if SEARCH not in code.co_names or not set(HINTING) & set(code.co_names):
        return ()  # saves reading the source
    file = source_of_object(code)
    searches = []
    for call in file.every(ast.Call) if file is not None else ():
        kernel = SearchSite.of(call).kernel if called_name(call) == SEARCH else None
        name = ast.unparse(kernel) if kernel is not None else ""
        end = call.end_lineno or call.lineno
        dotted = all(part.isidentifier() for part in name.split("."))
        if file is not None and dotted and (hints := _hints_after(file, name, end)):
            searches.append(HintedSearch(call.lineno, end, name, hints))
    return tuple(searches)


def _hints_after(file: SourceFile, kernel: str, end: int) -> tuple[tuple[str, int], ...]:
    """The literal hints that ``kernel`` gets after line ``end``.

    Empty if two calls differ, a hint is not literal, the name is assigned, or the kernel is used without hints.
    """
    hints, hinted_nodes = set(), set[ast.AST]()
    for call in file.every(ast.Call):
        hinted = as_hinted(file, call) if call.lineno > end else None
        if hinted and hinted.keeps and hinted.kernel is not None and ast.unparse(hinted.kernel) == kernel:
            hints.add(_literal(hinted))
            hinted_nodes |= set(ast.walk(hinted.kernel))
    names = (node for node in file.nodes if isinstance(node, (ast.Name, ast.Attribute)))
    for node in (node for node in names if ast.unparse(node) == kernel):
        if not isinstance(node.ctx, ast.Load) or (node.lineno > end and node not in hinted_nodes):
            return ()
    return (hints.pop() or ()) if len(hints) == 1 else ()


def _literal(hinted: HintedKernel) -> tuple[tuple[str, int], ...] | None:
    """The hints, sorted by name; None if one is not a literal integer."""
    if hinted.hints is None:
        return None
    values = {name: value.value if isinstance(value, ast.Constant) else None for name, value in hinted.hints.items()}
    integers = {name: value for name, value in values.items() if type(value) is int}
    return tuple(sorted(integers.items())) if len(integers) == len(values) else None
