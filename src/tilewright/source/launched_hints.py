"""The hints that the caller of a search launches its kernel with, read from the caller's source.

Some code searches without ``hints_fn`` and then launches ``kernel.replace_hints(occupancy=2)``, as TileGym's attention
does: the search then times another kernel than the one that is launched. With the hints found here every trial carries
them. They count only where they are certain: the calling function gives this kernel literal integers once, after the
search, and never launches it without them.
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
"""So many functions may be between the search and its caller, because logging wraps searches."""


@dataclass(frozen=True)
class HintedSearch:
    """One call of a search in a function: its lines, the name of its kernel, and the hints launched after it."""

    first_line: int
    last_line: int
    kernel: str
    hints: tuple[tuple[str, int], ...]


def launched_hints(caller: FrameType | None, kernel: Any) -> Mapping[str, int]:
    """The hints that ``caller`` launches ``kernel`` with after its search; empty where that is not certain."""
    frame = caller
    for _ in range(FRAMES):
        if frame is None:
            break
        for search in searches_of(frame.f_code):
            at_it = search.first_line <= frame.f_lineno <= search.last_line
            if at_it and _value(frame, search.kernel) is kernel:
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
    """The searches of a function whose kernel is launched with certain hints afterwards."""
    if SEARCH not in code.co_names or not set(HINTING) & set(code.co_names):
        return ()  # quick: no source is read
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

    Empty where two calls differ, where a hint is not literal, where the name gets another value, or where the kernel is
    also used without hints.
    """
    hints, accounted = set(), set[ast.AST]()
    for call in file.every(ast.Call):
        hinted = as_hinted(file, call) if call.lineno > end else None
        if hinted and hinted.keeps and hinted.kernel is not None and ast.unparse(hinted.kernel) == kernel:
            hints.add(_literal(hinted))
            accounted |= set(ast.walk(hinted.kernel))
    places = (node for node in file.nodes if isinstance(node, (ast.Name, ast.Attribute)))
    mentions = [node for node in places if ast.unparse(node) == kernel]
    if any(not isinstance(node.ctx, ast.Load) or (node.lineno > end and node not in accounted) for node in mentions):
        return ()
    return (hints.pop() or ()) if len(hints) == 1 else ()


def _literal(hinted: HintedKernel) -> tuple[tuple[str, int], ...] | None:
    """The hints, or None where one is not written as a whole number."""
    if hinted.hints is None:
        return None
    values = {name: value.value if isinstance(value, ast.Constant) else None for name, value in hinted.hints.items()}
    whole = {name: value for name, value in values.items() if type(value) is int}
    return tuple(sorted(whole.items())) if len(whole) == len(values) else None
