"""Programs of tests start in half the time: with torch and an optimizer in 1.5 s of processor time, not in 3.5 s.

torch's optimizers import `torch._dynamo` and thereby `sympy` and Triton, only to say that they are not to be compiled.
Here these modules are loaded once something else of them is used, as by `torch.compile`. The garbage collector frees
nothing while modules are imported, and the end of the process frees the memory anyway.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


class Later:
    """Finds a module that has the two functions that optimizers call, and becomes torch's own at any other use."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == COMPILER else None  # type: ignore[arg-type]  # a loader in short

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
            return function

        def loaded(name: str) -> Any:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                del sys.modules[COMPILER]
            return getattr(importlib.import_module(COMPILER), name)

        module.__dict__.update(disable=disable, graph_break=lambda: None, __getattr__=loaded)


def end() -> None:
    if "triton" not in sys.modules:  # it complains about objects that are left
        gc.freeze()


sys.meta_path.insert(0, Later())  # type: ignore[arg-type]
gc.set_threshold(100_000, 20, 50)
atexit.register(end)
