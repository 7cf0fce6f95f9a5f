"""Replaces `cuda.tile.tune.exhaustive_search` by Tilewright's search, and undoes that.

Every module-level name of cuda-tile's function gets ours, in every module (`swapping`); later imports by name get ours
from `cuda.tile.tune`. If the function or its result has another shape in this cuda-tile, it is left as it is, with one
warning.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilewright.runtime.swapping import swap

if TYPE_CHECKING:
    from tilewright.records import Value
    from tilewright.runtime.arrays import CallValue, KernelObject, Stream

PARAMETERS = (
    "search_space", "stream", "grid_fn", "kernel", "args_fn", "hints_fn", "quiet", "single_run_timeout_sec", "flush_l2",
)  # fmt: skip
"""Of the function in cuda-tile 1.7; the first six may be positional."""
POSITIONAL = 6
FIELDS = {
    "Measurement": {"config", "mean_us", "num_samples", "error_margin_us"},
    "TuningResult": {"best", "successes", "failures"},
}

_lock = threading.Lock()
_installed: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
"""At most one pair: cuda-tile's function, and ours."""


class PatchWarning(UserWarning):
    """cuda-tile is left as it is; the program runs."""


def install() -> bool:
    """Replaces the function under all its names, once; whether it is replaced now.

    Imports `cuda.tile` if the program has not done so; `startup` calls this when the program does.
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

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:  # a new one for each installation: `uninstall` replaces it only
            return exhaustive_search(*args, **kwargs)

        _installed.append((original, replaced))
        swap(*_installed[0])
        return True


def uninstall() -> None:
    """Gives every name cuda-tile's function again, also in modules that imported ours by name."""
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
    search_space: Sequence[Any],
    stream: Stream,
    grid_fn: Callable[[Any], tuple[int, ...]],
    kernel: KernelObject,
    args_fn: Callable[[Any], tuple[CallValue, ...]],
    hints_fn: Callable[[Any], dict[str, Value]] | None = None,
    *,
    quiet: bool = False,
    single_run_timeout_sec: float | None = None,
    flush_l2: bool = True,
) -> Any:
    """Tilewright's search with the signature and the result of cuda-tile's: see `exhaustive.answered`.

    Raises ValueError and TypeError as cuda-tile's does: for an empty space, a space that is not a sequence, and if no
    configuration works.
    """
    from tilewright.runtime.patch.exhaustive import SearchCall, answered

    request = SearchCall(
        search_space, stream, grid_fn, kernel, args_fn, hints_fn, quiet, single_run_timeout_sec, flush_l2
    )
    return answered(request, sys._getframe(1), _original())


def unknown_shape(tune: ModuleType) -> str:
    """How cuda-tile's function or result differs from those of 1.7; empty if they are equal."""
    try:
        parameters = inspect.signature(tune.exhaustive_search).parameters
    except (TypeError, ValueError):
        return "has no signature"
    positional = [each.name for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    if tuple(parameters) != PARAMETERS or len(positional) != POSITIONAL:
        return f"takes ({', '.join(parameters)})"
    for record, fields in FIELDS.items():
        if set(getattr(getattr(tune, record, None), "__dataclass_fields__", ())) != fields:
            return f"gives another {record}"
    return ""


def _original() -> Callable[..., Any]:
    if _installed:
        return _installed[0][0]
    from cuda.tile.tune import _tune

    original: Callable[..., Any] = _tune.exhaustive_search
    return original
