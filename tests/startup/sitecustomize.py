"""Programs of tests start in half the time: with torch and an optimizer in 1.5 s of processor time, not in 3.5 s.

torch's optimizers import `torch._dynamo`, only to say that they are not to be compiled; its profiler `torch._inductor`,
only to read a setting. These import SymPy and Triton. Here each runs once something else of it is used, as by
`torch.compile`. The garbage collector frees nothing while modules are imported, and the end of the process frees the
memory anyway.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

OPTIMIZERS_CALL = {"disable": lambda function, *_, **__: function, "graph_break": lambda: None}
THE_PROFILER_READS = ("torch._inductor.config", "torch._inductor.custom_graph_pass")
LATER: dict[str, dict[str, Any]] = {"torch._dynamo": OPTIMIZERS_CALL, "torch._inductor": {}}


class Later:
    """Finds the packages, and runs each one in its own module at the first use of what is not listed above."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        package = name.rpartition(".")[0]
        if package in LATER and name not in THE_PROFILER_READS:
            run(package)
        if name not in LATER or (found := PathFinder.find_spec(name, path)) is None:
            return None
        spec = ModuleSpec(name, self, origin=found.origin, is_package=True)  # type: ignore[arg-type]  # a short loader
        spec.submodule_search_locations = found.submodule_search_locations
        spec.loader_state = found
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def used(name: str) -> Any:
            run(module.__name__)
            return getattr(module, name)

        module.__dict__.update(LATER[module.__name__], __getattr__=used)


def run(package: str) -> None:
    if LATER.pop(package, None) is not None:
        module = sys.modules[package]
        del module.__dict__["__getattr__"]
        module.__spec__ = spec = module.__dict__["__spec__"].loader_state
        module.__file__, module.__loader__ = spec.origin, spec.loader
        spec.loader.exec_module(module)


def end() -> None:
    if "triton" not in sys.modules:  # it complains about objects that are left
        gc.freeze()


sys.meta_path.insert(0, Later())  # type: ignore[arg-type]
gc.set_threshold(100_000, 20, 50)
atexit.register(end)
