"""The hints that the caller of a search launches its kernel with, read from the caller's source.

Some code searches without ``hints_fn`` and then launches ``kernel.replace_hints(occupancy=2)`` (TileGym's attention):
what is timed is not what is launched, and the pick is right for neither. Here the hints are found, so that every
trial carries them. Only what is certain counts: one hinting of this very kernel by literal integers, in the calling
function, after the search, and no launch of it without them. Everything else is left as it is.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

SEARCH = "exhaustive_search"
HINTING = ("replace_hints", "cached_replace_hints")
FRAMES = 4
"""So many functions may stand between the search and its caller: someone who logs searches wraps them."""
KERNEL_POSITION = 3
"""Of the kernel among the positional arguments of a search."""


@dataclass(frozen=True)
class _Search:
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
        for search in _searches(frame.f_code):
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
def _searches(code: CodeType) -> tuple[_Search, ...]:
    """The searches of a function that are followed by one certain hinting of their kernel."""
    if SEARCH not in code.co_names or not set(HINTING) & set(code.co_names):
        return ()  # quick: no source is read
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return ()  # typed in, generated, or a lambda cut from its line
    ast.increment_lineno(tree, first - 1)
    found = []
    for call in _calls(tree, SEARCH):
        kernel = _kernel_of(call)
        if kernel is not None and (hints := _hints_after(tree, call, kernel)):
            found.append(_Search(call.lineno, call.end_lineno or call.lineno, kernel, hints))
    return tuple(found)


def _calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names:
            yield node


def _kernel_of(search: ast.Call) -> str | None:
    """The name, dotted or not, that is passed as the kernel."""
    by_name = {keyword.arg: keyword.value for keyword in search.keywords}
    given = search.args[KERNEL_POSITION] if len(search.args) > KERNEL_POSITION else by_name.get("kernel")
    if any(isinstance(argument, ast.Starred) for argument in search.args) or given is None:
        return None
    text = ast.unparse(given)
    return text if all(part.isidentifier() for part in text.split(".")) else None


def _hints_after(tree: ast.AST, search: ast.Call, kernel: str) -> tuple[tuple[str, int], ...]:
    end = search.end_lineno or search.lineno
    hinted: set[tuple[tuple[str, int], ...] | None] = set()
    accounted: set[int] = set()
    for call in _calls(tree, *HINTING):
        mention = _hinted_kernel(call)
        if call.lineno > end and mention is not None and ast.unparse(mention) == kernel:
            hinted.add(_literal(call))
            accounted |= {id(node) for node in ast.walk(mention)}
    if len(hinted) != 1 or _used_otherwise(tree, kernel, end, accounted):
        return ()
    return hinted.pop() or ()


def _hinted_kernel(call: ast.Call) -> ast.expr | None:
    """The expression of the kernel in ``kernel.replace_hints(…)`` and in ``cached_replace_hints(kernel, …)``."""
    if ast.unparse(call.func).rpartition(".")[2] == "cached_replace_hints":
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _literal(call: ast.Call) -> tuple[tuple[str, int], ...] | None:
    """The hints of a call, or None where one is not a whole number that stands there."""
    hints = []
    for keyword in call.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if keyword.arg is None or type(value) is not int:
            return None
        hints.append((keyword.arg, value))
    return tuple(sorted(hints))


def _used_otherwise(tree: ast.AST, kernel: str, end: int, accounted: set[int]) -> bool:
    """Whether the name gets another value anywhere, or the kernel is used after the search without the hints."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Name, ast.Attribute)) or ast.unparse(node) != kernel:
            continue
        if not isinstance(node.ctx, ast.Load) or (node.lineno > end and id(node) not in accounted):
            return True
    return False
