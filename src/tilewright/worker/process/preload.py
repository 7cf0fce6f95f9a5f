"""Imports torch while the worker does something else. The worker loads this module first, so it imports little."""

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
LATER = "torch._meta_registrations"
"""The last module that torch imports: shapes of operations on tensors without data. It and what only it loads take a
quarter of the import. Code that computes with data does not use it."""
USER = "torch._dynamo"
"""Of `torch.compile`, which computes with tensors without data. Its import runs `LATER` first."""
WITH_LIBRARIES = (
    "numpy", "ml_dtypes", "csv", "hashlib", "json", "queue", "resource", "select", "socket", "statistics", "tempfile",
    "zipfile",
)  # fmt: skip
"""Modules that the worker imports, too, and that load small libraries: see `_load_libraries`."""


def begin_torch() -> None:
    """Begins to import torch in a thread, which takes 3 s. Does nothing if torch is loaded or not installed."""
    if "torch" not in sys.modules:
        postpone()
        threading.Thread(target=_load, daemon=True).start()


def postpone() -> None:
    """Puts off `LATER` when torch is imported in this process."""
    if _POSTPONED not in sys.meta_path:
        sys.meta_path.insert(0, _POSTPONED)


def with_all_of_torch(call: Callable[[], T]) -> T:
    """Returns ``call()``. If it fails and `LATER` was put off, runs `LATER` and calls it again."""
    try:
        return call()
    except Exception:
        if not _POSTPONED.run():
            raise
        return call()


def _load() -> None:
    gc.disable()  # garbage collection would take an eighth of the import time and free nothing
    _load_libraries()
    with suppress(ImportError):  # it is raised again where torch is needed
        import_module("torch")
    gc.freeze()
    gc.enable()


def _load_libraries() -> None:
    """Loads torch's libraries, as the import of torch does, while other threads import modules.

    The import would keep Python's lock meanwhile. The linker has a lock, too: a thread that imports a module with a
    library waits for torch's libraries, and keeps Python's lock. So such modules are imported before. If torch's
    libraries cannot be loaded, the import of torch tells why.
    """
    for name in WITH_LIBRARIES:
        with suppress(ImportError):
            import_module(name)
    load = ctypes.CDLL(None).dlopen  # unlike `ctypes.CDLL`, a call of a function gives up Python's lock
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    found = PathFinder.find_spec("torch")
    for folder in (found and found.submodule_search_locations) or ():
        for name, scope in (("global_deps", os.RTLD_GLOBAL), ("python", os.RTLD_LOCAL)):
            load(os.fsencode(Path(folder, "lib", f"libtorch_{name}.so")), os.RTLD_NOW | scope)


class _Postponed(MetaPathFinder, Loader):
    """Finds `LATER` for torch, and runs it at the first use of something in it."""

    def __init__(self) -> None:
        self._found: ModuleSpec | None = None
        self._running = threading.RLock()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == USER:
            self.run()
        if name != LATER:
            return None
        self._found = PathFinder.find_spec(name, path)
        return self._found and ModuleSpec(name, self, origin=self._found.origin)

    def exec_module(self, module: ModuleType) -> None:
        def used(name: str) -> Any:
            if name.startswith("__"):  # such as the questions of `inspect` to every module
                raise AttributeError(f"module {LATER!r} has no attribute {name!r}")
            self.run()
            return getattr(module, name)

        module.__dict__["__getattr__"] = used

    def run(self) -> bool:
        """Runs the module. Returns False if it was not put off, or has run already."""
        with self._running:
            found, self._found = self._found, None
            if found is None or found.loader is None or (module := sys.modules.get(LATER)) is None:
                return False
            del module.__dict__["__getattr__"]
            module.__spec__, module.__file__, module.__loader__ = found, found.origin, found.loader
            found.loader.exec_module(module)
            return True


_POSTPONED = _Postponed()
