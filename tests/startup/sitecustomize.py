"""Programs of tests start in a third of the time: with torch and an optimizer in 1.1 s of processor time, not 3.5 s.

torch's optimizers import `torch._dynamo`, only to say that they are not to be compiled; its profiler `torch._inductor`,
only to read a setting. These import SymPy and Triton. torch itself imports what only exported programs, tensors without
data and NVIDIA's graphs need. Here each runs once something else of it is used, as by `torch.compile`. The garbage
collector frees nothing while modules are imported, and the end of the process frees the memory anyway.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

OPTIMIZERS_CALL = {"disable": lambda function, *_, **__: function, "graph_break": lambda: None}


class RanksAsk:
    """`torch._dynamo.utils` for `DistributedDataParallel`."""

    def get_optimize_ddp_mode(self) -> str:
        return "ddp_optimizer"

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("torch._dynamo.utils"), name)


THE_PROFILER_READS = ("torch._inductor.config", "torch._inductor.custom_graph_pass")
META = "torch._meta_registrations"
LATER: dict[str, dict[str, Any]] = {
    "torch._dynamo": OPTIMIZERS_CALL | {"utils": RanksAsk()}, "torch._inductor": {}, META: {}, "torch._native": {},
    "torch.export": {}, "torch.distributions": {}, "torch.quantization": {}, "cuda.bindings.runtime": {},
    "cuda.bindings.driver": {},
}  # fmt: skip
NEEDS = {"torch._dynamo": META}  # both are parts of torch.compile


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
            if name.startswith("__"):
                raise AttributeError(name)  # as `inspect` asks every module
            run(module.__name__)
            return getattr(module, name)

        module.__dict__.update(LATER[module.__name__], __getattr__=used)
        if module.__name__ == META:  # it is what gives random number generators their metaclass
            sys.modules["torch"]._C._set_generator_metaclass(import_module("torch._opaque_base").OpaqueBaseMeta)


def run(package: str) -> None:
    if (listed := LATER.pop(package, None)) is None:
        return
    if (first := NEEDS.get(package)) in sys.modules:
        run(first)
    module = sys.modules[package]
    for name in ("__getattr__", *listed):
        del module.__dict__[name]
    module.__spec__ = spec = module.__dict__["__spec__"].loader_state
    module.__file__, module.__loader__ = spec.origin, spec.loader
    spec.loader.exec_module(module)


def end() -> None:
    if "triton" not in sys.modules:  # it complains about objects that are left
        gc.freeze()


sys.meta_path.insert(0, Later())  # type: ignore[arg-type]
gc.set_threshold(100_000, 20, 50)
atexit.register(end)
