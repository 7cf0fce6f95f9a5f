"""Waits for imports of the user's program, and then installs Tilewright's hooks.

    import cuda.tile.tune or triton     the patch of the search
    import cuda.tile or triton          the recorder of launches
    import torch                        the recorder of a trace, or the observer of `program.run`

Environment variables choose the hooks. Every Python process of the user's program runs this module, so it imports only
`os` and `sys` at first. It imports the rest of Tilewright once the program imports one of these modules.

`tilewright run` puts this folder on PYTHONPATH, and the `sitecustomize` here starts this module. In other programs,
`tilewright_patch.pth` in site-packages starts it, if Tilewright is installed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing `typing` takes longer than the whole module
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

AWAITED = "cuda.tile.tune"
VARIABLE = "TILEWRIGHT_PATCH"
LAUNCHES, CAPTURE = ("cuda.tile", "triton"), "TILEWRIGHT_CAPTURE"
TORCH, PROFILE = "torch", "TILEWRIGHT_PROFILE"
REPLACED, COPIED = "TILEWRIGHT_REPLACED", "TILEWRIGHT_COPIED"
OBSERVE, SEEDED = "TILEWRIGHT_OBSERVE", ("random", "numpy.random")
OPERATIONS, GRAPHS = "TILEWRIGHT_OPERATIONS", "TILEWRIGHT_GRAPHS"
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class TilewrightWaiting:
    """An import finder that lets the other finders find ``awaited``, and calls ``act`` once that module is loaded."""

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
    """Makes the awaited imports call ``install()``. The environment variables choose the imports. Warns if
    TILEWRIGHT_PATCH is neither yes nor no."""
    if os.environ.get(COPIED, "").strip():
        _installer("tilewright.runtime.copied", "redirect")()
    if os.environ.get(REPLACED, "").strip():
        _installer("tilewright.runtime.replaced", "redirect")()
    if os.environ.get(CAPTURE, "").strip():
        for module in LAUNCHES:
            _wait_for(module, _installer("tilewright.runtime.capture.capture", "record"))
    if os.environ.get(PROFILE, "").strip():
        _wait_for(TORCH, _installer("tilewright.runtime.tracing", "profile"))
    if os.environ.get(OBSERVE, "").strip():
        observer = "tilewright.runtime.observing"
        if os.environ.get(OPERATIONS, "").strip():
            observer = "tilewright.runtime.operations.recording"
        elif os.environ.get(GRAPHS, "").strip():
            observer = "tilewright.runtime.graphs.watching"
        _wait_for(TORCH, _installer(observer, "observe"))
        for module in SEEDED:
            _wait_for(module, _installer("tilewright.runtime.seeding", "seed"))
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value in ON:
        _wait_for(AWAITED, _installer("tilewright.runtime.patch.patch", "patch"))
        _wait_for("triton", _installer("tilewright.runtime.patch.autotuner", "patch"))
    elif value not in OFF:
        warn(f"{VARIABLE}='{os.environ[VARIABLE]}' is neither 1 nor 0: the program runs unpatched")


def _wait_for(module: str, act: Callable[[], None]) -> None:
    if module in sys.modules:
        act()
    elif not any(_is_waiting(finder, module) for finder in sys.meta_path):
        sys.meta_path.insert(0, TilewrightWaiting(module, act))


def _is_waiting(finder: object, module: str) -> bool:
    return type(finder).__name__ == TilewrightWaiting.__name__ and getattr(finder, "awaited", "") == module


def _installer(module: str, verb: str) -> Callable[[], None]:
    """Returns a function that calls ``install()`` of ``module``. If ``install()`` fails, the function warns, and the
    program goes on."""

    def install() -> None:
        try:
            _make_importable()
            __import__(module, fromlist=["install"]).install()
        except Exception as error:
            warn(f"cannot {verb} {sys.executable}: {type(error).__name__}: {error}; the program runs un{verb}ed")

    return install


def _make_importable() -> None:
    """Makes `import tilewright` work where Tilewright is not installed: loads only the package of this file."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    if find_spec("tilewright") is not None:
        return
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    place = os.path.join(folder, "__init__.py")
    spec = spec_from_file_location("tilewright", place, submodule_search_locations=[folder])
    if spec is not None and spec.loader is not None:
        sys.modules["tilewright"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def warn(text: str) -> None:
    print(f"tilewright: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _act_after(loader: Loader, act: Callable[[], None]) -> None:
    """Makes ``loader`` call ``act`` after it has executed its module. `exec_module` is replaced only until then."""
    execute = loader.exec_module

    def executed(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        act()

    loader.exec_module = executed  # type: ignore[method-assign]
