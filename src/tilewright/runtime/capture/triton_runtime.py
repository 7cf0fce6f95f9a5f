"""The private parts of triton that capture depends on, all in this file.

Triton's public hooks do not suffice. `JITFunction.add_pre_run_hook` needs an active driver and does not report the
grid, and `knobs.runtime.launch_enter_hook` does not report the arguments. So `JITFunction.run` is replaced, which makes
every launch of a `@triton.jit` function. `Autotuner._bench` is replaced, too, to distinguish an autotuner's trials from
the program's launches.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import update_wrapper
from threading import get_ident
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from triton import __version__ as VERSION
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

    from tilewright.languages.triton.kernels import Kernel

P = ParamSpec("P")
R = TypeVar("R")
Run: TypeAlias = "Callable[..., CompiledKernel | None]"
"""`JITFunction.run`."""
RUN = ("self", "args", "grid", "warmup", "kwargs")
"""The parameters of `JITFunction.run` in triton 3.6 to 3.9."""
FRAMES = 24
"""The most calls between an autotuner and the function that looks for it on the stack."""


IN_TRIALS: set[int] = set()
"""The threads that run the trials of an autotuner."""


def unknown_shape() -> str:
    """Returns how the installed triton differs from the known versions, for messages; empty if it does not differ."""
    found = tuple(inspect.signature(JITFunction.run).parameters)
    if found != RUN:
        return f"JITFunction.run of triton {VERSION} takes ({', '.join(found)})"
    return "" if hasattr(Autotuner, "_bench") else f"triton {VERSION} has no Autotuner._bench"


class Replaced:
    """Replaces `JITFunction.run` and `Autotuner._bench`, until `undo`. ``run``: makes the new `JITFunction.run` from
    triton's."""

    def __init__(self, run: Callable[[Run], Run]) -> None:
        self.run, self.bench = JITFunction.run, Autotuner._bench
        JITFunction.run = update_wrapper(run(self.run), self.run)
        Autotuner._bench = update_wrapper(_as_trial(self.bench), self.bench)

    def undo(self) -> None:
        JITFunction.run = self.run
        Autotuner._bench = self.bench


def _as_trial(bench: Callable[P, R]) -> Callable[P, R]:
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        thread, is_inner = get_ident(), get_ident() in IN_TRIALS
        IN_TRIALS.add(thread)
        try:
            return bench(*args, **kwargs)
        finally:
            if not is_inner:
                IN_TRIALS.discard(thread)

    return run


def calling_autotuner(kernel: JITFunction[FunctionType]) -> Autotuner | None:
    """Returns the autotuner that is launching ``kernel`` now; None if the kernel is launched without one.

    The autotuner is looked for in the call stack: in the nearest `FRAMES` callers of this function.
    """
    frame: FrameType | None = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if isinstance(caller, Autotuner) and _innermost(caller) is kernel:
            return caller
        frame = frame.f_back
    return None


def _innermost(kernel: Kernel) -> Kernel:
    while hasattr(kernel, "fn") and not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    return kernel
