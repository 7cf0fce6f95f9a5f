"""Observes the program that `program.run` started, without changing it: steps, outputs, operations.

The startup hook calls `install` after the program has imported torch. A program without torch is not slowed down.

A step ends with each step of an optimizer; if there are several, the first one that steps counts. In a program without
an optimizer, a step is a call of one module: the first module with parameters that is called twice from outside of
other modules. Only these outermost calls have hooks; modules inside a module, and code that torch.compile traces, have
none. In a run without outputs, the hooks on modules are removed after the first optimizer step. Then only the
optimizer's hook remains, which takes about a microsecond.

torch.profiler counts the operations over the steps in `PROFILED`, which are not timed. The profiler sees the backward
pass, which runs in threads of torch, and the kernels of a GPU. A dispatch mode would see neither, and costs more.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypedDict, TypeVar

from tilewright.runtime.observed_tensors import ObservedTensors, eps_of, nudge, tensors_in
from tilewright.runtime.process import leave, seed_torch, write_record
from tilewright.runtime.slicing import Slices
from tilewright.runtime.steps import StepTimes, after_seconds, guarded, on_each_step
from tilewright.runtime.turns import wait_for_turn

if TYPE_CHECKING:
    from torch import Tensor
    from torch.amp import autocast
    from torch.autograd.graph import GradientEdge
    from torch.autograd.profiler import profile as AutogradProfiler
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.profiler import profile as Profiler
    from torch.utils.hooks import RemovableHandle

Differentiated: TypeAlias = "Tensor | GradientEdge | Sequence[Tensor] | Sequence[GradientEdge]"
P = ParamSpec("P")
R = TypeVar("R")

VARIABLE = "TILEWRIGHT_OBSERVE"
"""The name of an environment variable with the settings as JSON: ``folder``, ``steps``, ``seconds``, ``outputs``,
``nudged``, ``slice`` (steps of a slice; 0: none) and ``operations``. The value of ``operations`` is ``steps``, ``all``
(from the import of torch on) or empty."""
PROFILED = (3, 5)
"""Operations are counted after step 3, until the end of step 5."""
PROFILED_SECONDS = 10.0
"""The most seconds for which operations are counted in a program without steps."""
EARLY = 8
"""The tensors of this many first calls and steps are kept. Later ones are kept only if their number is a power
of two.
"""


def install() -> None:
    """Seeds torch, and observes this process by the settings in the environment variable."""
    seed_torch()
    Observer(json.loads(os.environ[VARIABLE])).begin()


def kept(number: int) -> bool:
    """Tells whether tensors of the ``number``-th call or step, from 1, are kept."""
    return number <= EARLY or number & (number - 1) == 0


class Settings(TypedDict):
    """The settings in the environment variable (see `VARIABLE`)."""

    folder: str
    steps: int
    seconds: float
    outputs: bool
    nudged: bool
    slice: int
    operations: str


class Observer:
    """Observes one process: its steps, their times, its tensors and its operations."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.process = settings, os.getpid()
        self.began, self.waited = time.monotonic(), 0.0
        self.unit, self.steps, self.eps = "process", 0, 0.0
        self.times, self.slowed, self.busy = StepTimes(), list[bool](), False
        self.tensors, self.calls, self.forwards, self.backwards = ObservedTensors(), list[list[int]](), 0, 0
        self.called: Counter[int] = Counter()
        self._nudged_by: dict[int, float] = {}
        self.operations: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self._before_call = self._before  # always one object: torch.compile compiles again if a hook changes
        self._hook: RemovableHandle | None = None
        self._module: int | None = None
        self._outermost: Module | None = None
        self._profiler: Profiler | None = None
        self._gives_way = False
        self._slices: Slices | None = None
        self._finished = False

    def begin(self) -> None:
        """Sets the hooks."""
        on_each_step(lambda optimizer: self._guarded(lambda: self._optimized(optimizer)))
        self._watch_calls()
        self._watch_compiled()
        if self.settings["outputs"]:
            self._watch_backward()
            self._watch_autocast()
        if self.settings["operations"] == "all":
            self._profile()
            after_seconds(PROFILED_SECONDS, lambda: self._guarded(self._count))
        atexit.register(self._guarded, self.finish)

    def finish(self, cut: str = "") -> None:
        """Writes the record of this process. The file gets its final name only when it is complete. ``cut``: the limit
        that ended the program; empty if it ended by itself."""
        if self._finished:
            return
        self._finished = True
        self._count()
        name, folder = f"process{self.process}", Path(self.settings["folder"])
        (folder / f"{name}.values").write_bytes(self.tensors.values.tobytes())
        us = [us for us, slowed in zip(self.times.us(), self.slowed[1:], strict=False) if not slowed]
        if self.unit == "process":
            us = [1e6 * (time.monotonic() - self.began)]
        record = {
            "unit": self.unit, "steps": self.steps, "cut": cut, "step_us": us, "device": _device(),
            "rank": int(os.environ.get("RANK", "0")), "eps": self.eps, "calls": self.calls,
            "tensors": self.tensors.rows, "operations": self.operations, "kernels": self.kernels, "memory": _memory(),
            "waited": self.waited,
        }  # fmt: skip
        write_record(folder, name, record)

    # Steps ------------------------------------------------------------------------------------------

    def _wait(self) -> float:
        """Waits for its turn, if it was started early. Returns the seconds, which are no part of its time."""
        waited = wait_for_turn()
        self.began, self.waited = self.began + waited, self.waited + waited
        return waited

    def _optimized(self, optimizer: Optimizer) -> None:
        self._wait()
        if self.unit != "optimizer step":
            self.unit, self.steps, self.times, self.slowed, self.calls = "optimizer step", 0, StepTimes(), [], []
            if self.settings["operations"] == "steps":  # those so far are of calls before the first step
                self._count()
                self.operations.clear()
                self.kernels.clear()
            if not self.settings["outputs"] and not self.settings["nudged"]:
                self._watch_calls(False)
        self._stepped()
        if self.settings["outputs"] and kept(self.steps):
            groups = enumerate(each for group in optimizer.param_groups for each in group["params"])
            for index, parameter in groups:
                self._keep(f"step {self.steps} parameter {index}", parameter)
        self._end_if_enough()

    def _stepped(self) -> None:
        if self.settings["slice"]:
            self._take_turns()
            return
        self.times.mark()
        self.slowed.append(self.busy)
        self.busy = self._profiler is not None
        self.steps += 1
        self.calls.append([self.forwards, self.backwards])
        if self.settings["operations"] == "steps" and self.steps == PROFILED[0]:
            self._profile()
        elif self.steps == PROFILED[1]:
            self._count()

    def _take_turns(self) -> None:
        if self._slices is None:
            if self.unit == "forward call" and has_optimizer():
                return  # these are evaluations before the training: wait for a step of the optimizer
            self._slices = Slices(Path(self.settings["folder"]), self.settings["slice"])
        self._slices.stepped(self.unit, _device())

    def _end_if_enough(self) -> None:
        late = time.monotonic() - self.began > self.settings["seconds"]
        if late or (self.steps >= self.settings["steps"] and (self.unit != "forward call" or not has_optimizer())):
            self.finish("seconds" if late else "steps")
            leave()

    # Calls of modules and of backward ---------------------------------------------------------------

    def _watch_calls(self, on: bool = True) -> None:
        """Adds the hook on all modules, or removes it. It is always the same hook."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._before_call)
        hooks = self._hook.hooks_dict_ref()
        if on:
            hooks[self._hook.id] = self._before_call
        else:
            hooks.pop(self._hook.id, None)

    def _before(self, module: Module, _: object) -> None:
        """Runs before an outermost call. Removes the hook on all modules until the call ends."""
        import torch

        if torch.compiler.is_compiling() or threading.current_thread() is not threading.main_thread():
            return
        self._watch_calls(False)
        inner: list[RemovableHandle] = []

        def after(module: Module, _: object, output: Any) -> None:
            inner[0].remove()
            self._after(output)

        self._outermost = module
        inner.append(module.register_forward_hook(after, always_call=True))
        self._guarded(lambda: self._call(module))

    def _after(self, output: Any) -> None:
        self._outermost = None
        if self.settings["outputs"]:
            self._guarded(lambda: self._output(output))
        if self.settings["outputs"] or self.settings["nudged"] or self.unit != "optimizer step":
            self._watch_calls()

    def _watch_compiled(self) -> None:
        """Observes the calls of modules that ``module.compile()`` has compiled, because such modules run no hooks."""
        import functools

        from torch.nn import Module

        compile_ = Module.compile

        @functools.wraps(compile_)
        def compiled(module: Module, *args: Any, **kwargs: Any) -> None:
            compile_(module, *args, **kwargs)
            called = module._compiled_call_impl
            module._compiled_call_impl = lambda *args, **kwargs: self._compiled(module, called, *args, **kwargs)

        Module.compile = compiled

    def _compiled(self, module: Module, called: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        import torch

        watched = self._hook is not None and self._hook.id in self._hook.hooks_dict_ref()
        if not watched or torch.compiler.is_compiling() or threading.current_thread() is not threading.main_thread():
            return called(*args, **kwargs)
        self._watch_calls(False)
        self._outermost = module
        self._guarded(lambda: self._call(module))
        output = None
        try:
            output = called(*args, **kwargs)
            return output
        finally:
            self._after(output)

    def _call(self, module: Module) -> None:
        self._wait()
        parameters = list(module.parameters())
        self._take_precision(module)
        if self.unit == "optimizer step" or not parameters:
            return
        self.called[id(module)] += 1
        if self.unit == "process" and self.called[id(module)] == 2:
            self.unit, self._module = "forward call", id(module)
        if self.unit == "forward call" and self._module == id(module):
            self._stepped()
            self._end_if_enough()

    def _output(self, output: Any) -> None:
        self.forwards += 1
        if kept(self.forwards):
            for index, tensor in enumerate(tensors_in(output)):
                self._keep(f"call {self.forwards} output {index}", tensor)

    def _watch_autocast(self) -> None:
        """Observes the autocast regions that begin inside a module. The module's parameters then have another type than
        its products.
        """
        import functools

        from torch.amp.autocast_mode import autocast

        enter = autocast.__enter__

        @functools.wraps(enter)
        def entered(theirs: autocast) -> autocast:
            result = enter(theirs)
            self._guarded(self._autocast)
            return result

        autocast.__enter__ = entered

    def _autocast(self) -> None:
        import torch

        if self._outermost is not None and not torch.compiler.is_compiling():
            self._take_precision(self._outermost)

    def _take_precision(self, module: Module) -> None:
        """Notes the precision in which a module computes now. Nudges its parameters if it is the coarsest so far."""
        parameters = [each for each in module.parameters() if each.is_floating_point()]
        eps = max(map(eps_of, parameters), default=0.0)
        self.eps = max(self.eps, eps)
        if self.settings["nudged"] and eps > self._nudged_by.get(id(module), 0.0):
            self._nudged_by[id(module)] = eps
            for each in parameters:
                nudge(each)

    def _watch_backward(self) -> None:
        import functools

        import torch

        backward = torch.autograd.backward

        @functools.wraps(backward)
        def observed(tensors: Differentiated, *args: Any, **kwargs: Any) -> None:
            self._guarded(lambda: self._loss(tensors))
            backward(tensors, *args, **kwargs)

        torch.autograd.backward = observed

    def _loss(self, tensors: Differentiated) -> None:
        self.backwards += 1
        if kept(self.backwards):
            for index, tensor in enumerate(tensors_in(tensors)):
                self._keep(f"backward {self.backwards} loss {index}", tensor)

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.busy = True
        self._guarded(lambda: self.tensors.add(name, tensor))

    # Operations -------------------------------------------------------------------------------------

    def _profile(self) -> None:
        """Starts the profiler, unless the program uses the profiler itself."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if torch.autograd._profiler_enabled():
            return
        self.busy = True
        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
        profiler.start()
        self._profiler = profiler  # only now: what starts a profiler stops this one
        if not self._gives_way:
            self._gives_way = True
            self._give_way()

    def _give_way(self) -> None:
        """Makes our profiler end before the program starts its own, because only one can run at a time."""
        from torch.autograd.profiler import profile

        prepare = profile._prepare_trace

        def prepared(theirs: AutogradProfiler) -> None:
            self._guarded(self._count)
            prepare(theirs)

        profile._prepare_trace = prepared

    def _count(self) -> None:
        """Stops the profiler and counts the operations and kernels that it recorded."""
        from torch.autograd import DeviceType

        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self.busy = True
        profiler.stop()
        for event in profiler.events():
            counts = self.operations if event.device_type == DeviceType.CPU else self.kernels
            counts[event.name] += 1

    def _guarded(self, act: Callable[[], None]) -> None:
        """Calls ``act`` in the process that imported torch, but not in processes forked from it."""
        if os.getpid() == self.process:
            guarded(act, "observe the program")


def has_optimizer() -> bool:
    """Tells whether the program has an optimizer. If it has not stepped yet, the program probably evaluates before it
    trains."""
    import gc

    from torch.optim import Optimizer

    return any(issubclass(type(each), Optimizer) for each in gc.get_objects())


def _memory() -> dict[str, int]:
    """Returns the bytes of the host, and of the GPU, that this process had at most, and those left free on the GPU."""
    import resource

    import torch

    host = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if not torch.cuda.is_initialized():
        return {"host": host}
    return {"host": host, "gpu": torch.cuda.max_memory_reserved(), "gpu, free": torch.cuda.mem_get_info()[0]}


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu"
