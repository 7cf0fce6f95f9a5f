"""Replaces `cuda.tile.tune.exhaustive_search` with Tilewright's search, and can undo this.

`install` rebinds every module-level name of cuda-tile's function, in every module (`swapping`). Later imports get the
replacement from `cuda.tile.tune`. If this cuda-tile has a different function or result, `install` only warns, once.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tilewright.runtime.swapping import swap

PARAMETERS = (
    "search_space", "stream", "grid_fn", "kernel", "args_fn", "hints_fn", "quiet", "single_run_timeout_sec", "flush_l2",
)  # fmt: skip
"""The parameters in cuda-tile 1.7; the first six may be positional."""
POSITIONAL = 6
FIELDS = {
    "Measurement": {"config", "mean_us", "num_samples", "error_margin_us"},
    "TuningResult": {"best", "successes", "failures"},
}

_lock = threading.Lock()
_installed: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
"""Empty, or one pair: cuda-tile's function and its replacement."""


class PatchWarning(UserWarning):
    """cuda-tile was not patched, and the program goes on without the patch."""


def install() -> bool:
    """Replaces the function under all its names, once. Returns whether it is replaced now. Imports `cuda.tile`."""
    from cuda.tile.tune import _tune

    with _lock:
        if _installed:
            return True
        original = _tune.exhaustive_search
        if difference := unknown_shape(_tune):
            text = f"tilewright: exhaustive_search of this cuda-tile {difference}; known: cuda-tile 1.7. "
            warnings.warn(f"{text}It is left as it is", PatchWarning, stacklevel=2)
            return False
        signature = inspect.signature(original)

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:  # new in each `install`: `uninstall` finds it by identity
            from tilewright.runtime.patch.exhaustive import answer
            from tilewright.runtime.patch.exhaustive_problem import SearchCall

            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return answer(SearchCall(**bound.arguments), sys._getframe(1), original)

        _installed.append((original, replaced))
        swap(original, replaced)
        return True


def uninstall() -> None:
    """Puts cuda-tile's function back under every name, also in modules that imported the replacement by name."""
    with _lock:
        if _installed:
            original, replaced = _installed.pop()
            swap(replaced, original)


def unknown_shape(tune: ModuleType) -> str:
    """Returns how cuda-tile's function or its result differs from version 1.7; empty if they are equal."""
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
