"""Reads the hints with which the caller of a search launches the kernel, from the caller's source.

Some code, such as TileGym's attention, searches without ``hints_fn`` and then launches
``kernel.replace_hints(occupancy=2)``. The search would time a kernel that is never launched, so trials get these hints,
too. The hints are used only if they are certain. After the search, the caller must set them once, to literal integers,
and must never use the kernel without them.
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
"""The most stack frames to look at. Wrappers, for example for logging, may be between the caller and the search."""


@dataclass(frozen=True)
class HintedSearch:
    """One call of a search. ``hints``: the hints with which the kernel is launched after the call."""

    first_line: int
    last_line: int
    kernel: str
    hints: tuple[tuple[str, int], ...]


def launched_hints(caller: FrameType | None, kernel: Any) -> Mapping[str, int]:
    """Returns the hints with which ``caller`` launches ``kernel`` after its search; empty if they are not certain."""
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
    """Returns the searches in a function's source after which the kernel is launched with known hints."""
    if SEARCH not in code.co_names or not set(HINTING) & set(code.co_names):
        return ()  # without reading the source
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
    """Returns the literal hints that ``kernel`` gets after line ``end``.

    Empty if two calls set different hints, if a hint is not an integer literal, or if the name ``kernel`` is assigned.
    Also empty if the kernel is used without hints after line ``end``.
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
    """Returns the hints, sorted by name; None if a hint is not a literal integer."""
    if hinted.hints is None:
        return None
    values = {name: value.value if isinstance(value, ast.Constant) else None for name, value in hinted.hints.items()}
    integers = {name: value for name, value in values.items() if type(value) is int}
    return tuple(sorted(integers.items())) if len(integers) == len(values) else None
