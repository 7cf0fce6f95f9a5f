"""Runs at the start of a Python that Tilewright is to patch or to record: waits until the program imports
`cuda.tile.tune`, then installs `runtime.patching.patch`, or `cuda.tile`, then installs `runtime.capturing.capture`.

Each interpreter of the user's program pays for it, so it imports nothing but `os` and `sys`, and the rest of
Tilewright only when the program imports `cuda.tile`. Two ways lead here: `tilewright_patch.pth`, which an installed
Tilewright leaves in site-packages, and the `sitecustomize` of this folder, which `tilewright run` puts on PYTHONPATH.
Where both could, the first leaves it to the second.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all of this
    from typing import Any

AWAITED = "cuda.tile.tune"
VARIABLE = "TILEWRIGHT_PATCH"
LAUNCHES, CAPTURE = "cuda.tile", "TILEWRIGHT_CAPTURE"
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class TilewrightWaiting:
    """A finder that finds nothing itself: it lets the others find the module, and acts once that is loaded."""

    def __init__(self, awaited: str, act: Any) -> None:
        self.awaited, self.act = awaited, act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.awaited:
            return None
        stop_waiting(name)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                _act_after(spec.loader, self.act)
                return spec
        return None


def start() -> None:
    """Waits for the modules if the environment asks for it; a value that says neither yes nor no is one warning."""
    if os.environ.get(CAPTURE, "").strip():
        _wait_for(LAUNCHES, install_capture)
    said = os.environ.get(VARIABLE, "").strip().lower()
    if said in ON:
        _wait_for(AWAITED, install)
    elif said not in OFF:
        warn(f"{VARIABLE}='{os.environ[VARIABLE]}' is neither 1 nor 0: the program runs unpatched")


def _wait_for(module: str, act: Any) -> None:
    if module in sys.modules:
        act()
    elif not any(_is_waiting(finder, module) for finder in sys.meta_path):
        sys.meta_path.insert(0, TilewrightWaiting(module, act))


def stop_waiting(module: str) -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_waiting(finder, module)]


def _is_waiting(finder: object, module: str) -> bool:
    return type(finder).__name__ == TilewrightWaiting.__name__ and getattr(finder, "awaited", "") == module


def install() -> None:
    """Whatever goes wrong here, the program runs: unpatched, and told so in one line."""
    try:
        from tilewright.runtime.patch import patch

        patch.install()
    except Exception as error:
        warn(f"cannot patch {sys.executable}: {type(error).__name__}: {error}; the program runs unpatched")


def install_capture() -> None:
    """As `install`: the program runs in any case."""
    try:
        from tilewright.runtime.capture import capture

        capture.install()
    except Exception as error:
        warn(f"cannot record {sys.executable}: {type(error).__name__}: {error}; the program runs unrecorded")


def warn(text: str) -> None:
    print(f"tilewright: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _act_after(loader: Any, act: Any) -> None:
    """The loader stays what it is; its own `exec_module` is back before anyone can look."""
    execute = loader.exec_module

    def executed(module: Any) -> None:
        del loader.exec_module
        execute(module)
        act()

    loader.exec_module = executed
