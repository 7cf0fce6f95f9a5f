"""Replaces the search of `triton.autotune`, and can undo this. All private parts of Triton's autotuner are used here.

`Autotuner.run` is Triton's own, and so is a call whose key is in the autotuner's cache. For a new key, `run` calls
`prune_configs` once, and then `_bench` for each configuration that is left. These two methods are replaced. The first
`_bench` of a key asks for all configurations (`autotuned`), and each `_bench` returns its own time. So `run` does the
rest as usual: it keeps the fastest in its cache, fills ``configs_timings``, and calls hooks and listeners.

If this Triton has other methods, `install` only warns, once.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from tilewright.runtime.patch.patch import PatchWarning

if TYPE_CHECKING:
    from triton import Config
    from triton.runtime.autotuner import Autotuner

    from tilewright.runtime.patch.autotuned import Timings

METHODS = {"prune_configs": ("self", "kwargs"), "_bench": ("self", "args", "config", "meta"),
           "run": ("self", "args", "kwargs")}  # fmt: skip
"""The methods of `Autotuner` that matter here, with their parameters (triton 3.6 to 3.9)."""

_lock = threading.Lock()
_installed: dict[str, Callable[..., Any]] = {}
"""Triton's own methods by name, while they are replaced."""


@dataclass
class BenchedCall:
    """The configurations that one call of `Autotuner.run` benches. ``timings``: their times, once they are known."""

    configs: Sequence[Config]
    timings: Timings | None = None
    benched: int = 0


_asked: dict[tuple[int, int], BenchedCall] = {}
"""The calls that are being searched, by thread and autotuner."""


def install() -> bool:
    """Replaces the two methods, once. Returns whether they are replaced now. Imports `triton`."""
    from triton.runtime.autotuner import Autotuner

    with _lock:
        if _installed:
            return True
        if difference := unknown_shape():
            text = f"tilewright: {difference}; known: triton 3.6 to 3.9. The search of triton.autotune is left as it is"
            warnings.warn(text, PatchWarning, stacklevel=2)
            return False
        for name, make in (("prune_configs", _pruning), ("_bench", _benching)):
            _installed[name] = getattr(Autotuner, name)
            setattr(Autotuner, name, wraps(_installed[name])(make(_installed[name])))
        return True


def uninstall() -> None:
    """Puts Triton's methods back."""
    from triton.runtime.autotuner import Autotuner

    with _lock:
        for name, original in _installed.items():
            setattr(Autotuner, name, original)
        _installed.clear()


def unknown_shape() -> str:
    """Returns how the installed Triton's methods differ from `METHODS`; empty if they do not."""
    from triton import __version__
    from triton.runtime.autotuner import Autotuner

    for name, parameters in METHODS.items():
        found = tuple(inspect.signature(getattr(Autotuner, name, lambda: None)).parameters)
        if found != parameters:
            return f"Autotuner.{name} of triton {__version__} takes ({', '.join(found)})"
    return ""


def _pruning(original: Callable[..., Any]) -> Callable[..., Any]:
    def prune_configs(self: Autotuner, kwargs: dict[str, Any]) -> list[Config]:
        configs = list(original(self, kwargs))  # the program's own function may return what can be read only once
        _asked[threading.get_ident(), id(self)] = BenchedCall(configs)
        return configs

    return prune_configs


def _benching(original: Callable[..., Any]) -> Callable[..., Any]:
    def _bench(self: Autotuner, *args: Any, config: Config, **meta: Any) -> Any:
        call = threading.get_ident(), id(self)
        asked = _asked.get(call)
        if asked is None or not any(config is each for each in asked.configs):
            return original(self, *args, config=config, **meta)
        if not asked.benched:
            from tilewright.runtime.patch.autotuned import answer

            asked.timings = answer(self, args, meta, asked.configs)
        asked.benched += 1
        if asked.benched == len(asked.configs):
            _asked.pop(call, None)
        if asked.timings is None:
            return original(self, *args, config=config, **meta)
        return asked.timings[next(at for at, each in enumerate(asked.configs) if each is config)]

    return _bench
