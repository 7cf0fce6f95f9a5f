"""Runs when a Python starts that Tilewright is to patch or to record. It waits until the program imports
`cuda.tile.tune` and then installs `runtime.patch.patch`, or until it imports `cuda.tile` and then installs
`runtime.capture.capture`.

Every interpreter of the user's program pays for this module. It therefore imports only `os` and `sys`, and the rest
of Tilewright when the program imports `cuda.tile`. It is started by `tilewright_patch.pth`, which an installed
Tilewright leaves in site-packages, or by the `sitecustomize` of this folder, which `tilewright run` puts on
PYTHONPATH. If both are there, the second starts it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all of this
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

AWAITED = "cuda.tile.tune"
VARIABLE = "TILEWRIGHT_PATCH"
LAUNCHES, CAPTURE = "cuda.tile", "TILEWRIGHT_CAPTURE"
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class TilewrightWaiting:
    """An import finder that finds nothing itself. It lets the others find the module, and acts once that is loaded."""

    def __init__(self, awaited: str, act: Callable[[], None]) -> None:
        self.awaited, self.act = awaited, act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.awaited:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_waiting(finder, name)]
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    _act_after(spec.loader, self.act)
                return spec
        return None


def start() -> None:
    """Waits for the modules if the environment asks for it; a value that is neither yes nor no gives one warning."""
    if os.environ.get(CAPTURE, "").strip():
        _wait_for(LAUNCHES, _installer("tilewright.runtime.capture.capture", "record"))
    said = os.environ.get(VARIABLE, "").strip().lower()
    if said in ON:
        _wait_for(AWAITED, _installer("tilewright.runtime.patch.patch", "patch"))
    elif said not in OFF:
        warn(f"{VARIABLE}='{os.environ[VARIABLE]}' is neither 1 nor 0: the program runs unpatched")


def _wait_for(module: str, act: Callable[[], None]) -> None:
    if module in sys.modules:
        act()
    elif not any(_is_waiting(finder, module) for finder in sys.meta_path):
        sys.meta_path.insert(0, TilewrightWaiting(module, act))


def _is_waiting(finder: object, module: str) -> bool:
    return type(finder).__name__ == TilewrightWaiting.__name__ and getattr(finder, "awaited", "") == module


def _installer(module: str, verb: str) -> Callable[[], None]:
    """Calls ``install`` of a module. After any error there the program runs as without it, and one line says so."""

    def install() -> None:
        try:
            __import__(module, fromlist=["install"]).install()
        except Exception as error:
            warn(f"cannot {verb} {sys.executable}: {type(error).__name__}: {error}; the program runs un{verb}ed")

    return install


def warn(text: str) -> None:
    print(f"tilewright: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _act_after(loader: Loader, act: Callable[[], None]) -> None:
    """Calls ``act`` after the module is executed. The loader has its own `exec_module` again by then."""
    execute = loader.exec_module

    def executed(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        act()

    loader.exec_module = executed  # type: ignore[method-assign]
