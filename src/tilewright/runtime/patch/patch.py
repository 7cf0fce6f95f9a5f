"""Puts Tilewright's search where `cuda.tile.tune.exhaustive_search` stands, and takes it away again.

Every module-level name that holds cuda-tile's function gets ours, in whatever module (`swapping`); later imports by
name get ours from `cuda.tile.tune`. A cuda-tile whose function or result has another shape is left alone, with one
warning.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.runtime.swapping import swap

NAME = "exhaustive_search"
PARAMETERS = (
    "search_space", "stream", "grid_fn", "kernel", "args_fn", "hints_fn", "quiet", "single_run_timeout_sec", "flush_l2",
)  # fmt: skip
"""Of the function in cuda-tile 1.7; the first six may be positional."""
POSITIONAL = 6
MEASUREMENT = {"config", "mean_us", "num_samples", "error_margin_us"}
RESULT = {"best", "successes", "failures"}

_lock = threading.Lock()
_installed: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
"""At most one pair: cuda-tile's function, and what stands in its place."""


class PatchWarning(UserWarning):
    """cuda-tile is left as it is; the program runs."""


def install() -> bool:
    """Replaces the function wherever it stands by name; whether it is replaced now. Twice is once.

    Imports `cuda.tile` if the program has not yet; the hook of `startup` calls this when the program does.
    """
    from cuda.tile.tune import _tune

    with _lock:
        if _installed:
            return True
        original = _tune.exhaustive_search
        if difference := unknown_shape(_tune):
            warnings.warn(
                f"tilewright: exhaustive_search of this cuda-tile {difference}; known: cuda-tile 1.7. "
                "It is left as it is",
                PatchWarning,
                stacklevel=2,
            )
            return False
        _installed.append((original, _replacement(original)))
        swap(*_installed[0])
        return True


def uninstall() -> None:
    """Every name has cuda-tile's function again, also where a module took ours by name meanwhile."""
    with _lock:
        if _installed:
            original, ours = _installed.pop()
            swap(ours, original)


@contextmanager
def patched() -> Iterator[bool]:
    """Installed inside the block; as it was after it."""
    before = bool(_installed)
    try:
        yield install()
    finally:
        if not before:
            uninstall()


def exhaustive_search(
    search_space: Any,
    stream: Any,
    grid_fn: Callable[[Any], tuple[int, ...]],
    kernel: Any,
    args_fn: Callable[[Any], tuple[Any, ...]],
    hints_fn: Callable[[Any], dict[str, Any]] | None = None,
    *,
    quiet: bool = False,
    single_run_timeout_sec: float | None = None,
    flush_l2: bool = True,
) -> Any:
    """Tilewright's search with the signature and the result of cuda-tile's: see `exhaustive.answered`.

    Raises ValueError and TypeError where cuda-tile's does: an empty space, a space that is no sequence, no
    configuration that works.
    """
    from tilewright.runtime.patch.exhaustive import answered
    from tilewright.runtime.patch.exhaustive_problem import SearchCall

    request = SearchCall(
        search_space, stream, grid_fn, kernel, args_fn, hints_fn, quiet, single_run_timeout_sec, flush_l2
    )
    return answered(request, sys._getframe(1), _original())


def unknown_shape(tune: Any) -> str:
    """In what cuda-tile's function and result differ from those we stand in for; empty where in nothing."""
    try:
        parameters = inspect.signature(tune.exhaustive_search).parameters
    except (TypeError, ValueError):
        return "has no signature"
    positional = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    if tuple(parameters) != PARAMETERS or len(positional) != POSITIONAL:
        return f"takes ({', '.join(parameters)})"
    for record, fields in (("Measurement", MEASUREMENT), ("TuningResult", RESULT)):
        if set(getattr(getattr(tune, record, None), "__dataclass_fields__", ())) != fields:
            return f"gives another {record}"
    return ""


def _original() -> Callable[..., Any]:
    if _installed:
        return _installed[0][0]
    from cuda.tile.tune import _tune

    found: Callable[..., Any] = _tune.exhaustive_search
    return found


def _replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own for each installation, so that `uninstall` finds it and nothing else."""

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return exhaustive_search(*args, **kwargs)

    return replaced
