"""Reads the kernel of a launch: a `@triton.jit` function, with or without `@triton.autotune` and `@triton.heuristics`.

Tilewright does the tuning, so an autotuner's own choice is not used. Before a launch, Tilewright does the other work of
these decorators, as `Autotuner.run` and `Heuristics.run` do. It runs the ``pre_hook`` of the configuration, and
computes the values of heuristics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.errors import TaskError
from tilewright.records import Configuration

if TYPE_CHECKING:
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_cooperative_grid", "launch_pdl")
"""The hints that are options of the compiler."""
PASSED_BY_TRITON = ("grid", "warmup")
"""The keywords of `JITFunction.run` that are neither arguments of the kernel nor options of the compiler."""
Kernel: TypeAlias = "JITFunction[FunctionType] | Autotuner | Heuristics"
"""A `@triton.jit` function, bare or under decorators."""
Given: TypeAlias = Mapping[str, Any]
"""Arguments, and options of the compiler, by name."""
ParameterType: TypeAlias = "str | tuple[ParameterType, ...]"
"""A type such as ``*bf16`` or ``i32``, or ``constexpr``. For a tuple: the types of its parts."""


@dataclass(frozen=True)
class KernelCall:
    """The arguments of a `JITFunction`."""

    function: JITFunction[FunctionType]
    args: tuple[Any, ...]
    keywords: Given


def is_triton(kernel: Any) -> bool:
    """Returns whether a kernel is a `@triton.jit` function, with or without more decorators. Does not import triton."""
    return _function_in(kernel) is not None


def jit_function(kernel: Kernel) -> JITFunction[FunctionType]:
    """Returns the `JITFunction` of a kernel."""
    function = _function_in(kernel)
    assert function is not None, "the language recognised it"
    return function


def _function_in(kernel: Any) -> JITFunction[FunctionType] | None:
    while kernel is not None and _is(kernel, "triton.runtime.autotuner", "Autotuner", "Heuristics"):
        kernel = kernel.fn
    return kernel if _is(kernel, "triton.runtime.jit", "JITFunction") else None


def heuristics_of(kernel: Kernel) -> dict[str, Callable[[Given], Any]]:
    """Maps each parameter to the function that computes its value, from `@triton.heuristics`. The outermost decorator
    is first."""
    found: dict[str, Callable[[Given], Any]] = {}
    while (function := _function_in(kernel)) is not None and kernel is not function:
        found |= getattr(kernel, "values", {})
        kernel = kernel.fn
    return found


def without_descriptor(value: Any) -> Any:
    """Returns the tensor of a tensor descriptor that the host made; any other argument unchanged."""
    return value.base if _is(value, "triton.tools.tensor_descriptor", "TensorDescriptor") else value


def _is(thing: Any, module: str, *names: str) -> bool:
    return any(base.__module__ == module and base.__name__ in names for base in type(thing).__mro__)


def called(kernel: Kernel, args: tuple[Any, ...], options: Given, config: Configuration) -> KernelCall:
    """Returns the call of the `JITFunction` inside a kernel.

    Parameters that are missing in ``args`` get the values of the knobs in the configuration. Raises TaskError for a
    parameter without a value.
    """
    function = jit_function(kernel)
    names = [parameter.name for parameter in function.params]
    if len(args) > len(names):
        raise TaskError(f"kernel '{function.__name__}' takes {len(names)} arguments, the launch passes {len(args)}")
    given, left = dict(zip(names, args, strict=False)), function.params[len(args) :]
    keywords: dict[str, Any] = {each.name: config[each.name] for each in left if each.name in config} | dict(options)
    while kernel is not function:
        if _is(kernel, "triton.runtime.autotuner", "Heuristics"):
            for name, heuristic in kernel.values.items():
                keywords[name] = heuristic({**given, **keywords})
        elif hook := _pre_hook(kernel, {**config, **keywords}):
            hook({**given, **keywords})
        kernel = kernel.fn
    if missing := [each.name for each in left if not each.has_default and each.name not in keywords]:
        raise TaskError(
            f"kernel '{function.__name__}': neither the launch nor the space has a value for '{missing[0]}'; "
            f"fix: pass it in args, or add a constant '{missing[0]}' to the space"
        )
    if plain := [each.name for each in left if each.name in keywords and not each.is_constexpr]:
        raise TaskError(
            f"kernel '{function.__name__}': '{plain[0]}' is no tl.constexpr, so its value cannot come from the space; "
            f"fix: pass it in args, or declare '{plain[0]}: tl.constexpr'"
        )
    return KernelCall(function, args, keywords)


def _pre_hook(autotuner: Autotuner, chosen: Given) -> Callable[[Given], None] | None:
    """Returns the ``pre_hook`` of the `triton.Config` with these values.

    If there is no such `triton.Config`, returns the hook that all of them share; None if their hooks differ.
    """
    for config in autotuner.configs:
        if all(chosen.get(name, value) == value for name, value in config.all_kwargs().items()):
            hook: Callable[[Given], None] | None = config.pre_hook
            return hook
    hooks: set[Callable[[Given], None] | None] = {config.pre_hook for config in autotuner.configs}
    return hooks.pop() if len(hooks) == 1 else None
