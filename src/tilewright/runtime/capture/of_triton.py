"""Captures launches of `@triton.jit` functions. A hook replaces `JITFunction.run`, which makes all these launches.

Autotuners and heuristics also call `JITFunction.run`, with the values that they chose, so their launches are recorded
like any other. The trials of an autotuner, and kernels that are only compiled (`warmup`), are not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from tilewright.errors import RequestError
from tilewright.records import Configuration, Value
from tilewright.runtime.arrays import CallValue
from tilewright.runtime.capture.described import Argument, Autotuned, DescribedLaunch, LiveDescriptor, described_call
from tilewright.runtime.capture.language import CapturedLanguage, LaunchRecorder, LiveLaunch
from tilewright.task.tensors import Descriptor

if TYPE_CHECKING:
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    from tilewright.languages.triton.kernels import Kernel
    from tilewright.runtime.capture.triton_runtime import Run
    from tilewright.task.task import Launch

SCALARS = bool, int, float, str, type(None)
NONE: tuple[None, ...] = ()


class CapturedTriton(CapturedLanguage):
    """Implements `language.CapturedLanguage`."""

    name, module = "triton", "triton"
    tried = MappingProxyType({"route": ("ptx", "tileir"), "num_warps": (None, 4, 8), "num_stages": (None, 2, 3, 4)})
    where = 'lambda route, num_warps: route == "ptx" or num_warps is None'
    has_pointers = True

    def start(self, recorder: LaunchRecorder) -> None:
        from tilewright.runtime.capture import triton_runtime

        if difference := triton_runtime.unknown_shape():
            raise RequestError(f"launches of Triton kernels are not recorded: {difference}; known: triton 3.6 to 3.9")
        self._replaced = triton_runtime.Replaced(lambda run: self.hook(run, recorder))

    def stop(self) -> None:
        self._replaced.undo()

    def hook(self, original: Run, recorder: LaunchRecorder) -> Run:
        """Returns the new `JITFunction.run`. Most launches only pass through it (see `Recorder.skips`)."""
        from tilewright.runtime.capture.triton_runtime import IN_TRIALS

        language, skips = self, recorder.skips

        def run(self: JITFunction[FunctionType], *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("warmup") or (IN_TRIALS and get_ident() in IN_TRIALS):
                return original(self, *args, **kwargs)
            try:
                for _ in skips.get(id(self), NONE):
                    return original(self, *args, **kwargs)
            except BaseException as error:
                if (launch := called(self, args, kwargs)) is not None:
                    recorder.failed(error, language, launch)
                raise
            if (launch := called(self, args, kwargs)) is None:
                return original(self, *args, **kwargs)
            kwargs["grid"] = launch.grid  # a grid that is a function was called already; it must not be called twice
            return recorder.examine(language, launch, lambda: original(self, *args, **kwargs))

        return run

    def handle(self, kernel: JITFunction[FunctionType]) -> int:
        return id(kernel)  # hashing a `JITFunction` would read the source of all functions that it calls

    def function_of(self, kernel: JITFunction[FunctionType]) -> FunctionType:
        function: FunctionType = kernel.fn
        return function

    def constants(self, kernel: JITFunction[FunctionType]) -> tuple[bool, ...]:
        return tuple(parameter.is_constexpr for parameter in kernel.params)

    def described(self, launch: LiveLaunch) -> DescribedLaunch:
        from tilewright.runtime.capture.triton_runtime import calling_autotuner

        kernel = launch.kernel
        names = [parameter.name for parameter in kernel.params]
        constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
        made = described_call(kernel.fn, launch.grid, dict(zip(names, launch.args, strict=True)), constants)
        options = {name: value if isinstance(value, SCALARS) else repr(value) for name, value in launch.options.items()}
        problem = "it is a gluon kernel: write it with @triton.jit" if kernel.is_gluon() else made.problem
        autotuner = calling_autotuner(kernel)
        autotuned = None if autotuner is None else _autotuned(autotuner)
        return replace(made, hints=options, problem=problem, language=self.name, autotuned=autotuned)

    def with_hints(self, kernel: Kernel, hints: Mapping[str, Value]) -> JITFunction[FunctionType]:
        from tilewright.languages.triton.kernels import jit_function

        return jit_function(kernel)

    def computed(self, kernel: Kernel) -> frozenset[str]:
        from tilewright.languages.triton.kernels import heuristics_of

        return frozenset(heuristics_of(kernel))

    def passed(self, kernel: Kernel, launch: DescribedLaunch) -> tuple[Argument, ...]:
        computed = self.computed(kernel)
        first = next((at for at, one in enumerate(launch.arguments) if one.name in computed), len(launch.arguments))
        for argument in launch.arguments[first:]:
            if argument.kind not in ("scalar", "constant"):
                what = f"'{argument.name}' comes after '{launch.arguments[first].name}', which heuristics compute"
                raise RequestError(f"{launch.kernel}: {what}: a task needs its arrays before such parameters")
        return launch.arguments[:first]

    def variants(self, point: Mapping[str, Value]) -> tuple[dict[str, Value], ...]:
        without = {name: None for name in ("num_warps", "maxnreg") if name in point}
        return dict(point), {**point, "route": "tileir", **without}

    def dtype(self, name: str) -> CallValue:
        import triton.language as tl

        dtype: CallValue = tl.dtype(name)
        return dtype

    def dtype_text(self, name: str) -> str:
        return f"triton.language.dtype({name!r})"

    def on_device(self, value: CallValue) -> CallValue:
        if not isinstance(value, Descriptor):
            return value
        from triton.tools.tensor_descriptor import TensorDescriptor

        base, blocks = value.base, list(value.block_shape)
        made: CallValue = TensorDescriptor(base, list(base.shape), list(base.stride()), blocks, value.padding)
        return made

    def launch(self, launch: Launch, shipped: Mapping[str, Value]) -> None:
        from tilewright.languages.triton.kernels import OPTIONS, called

        options = {name: shipped[name] for name in OPTIONS if shipped.get(name) is not None}
        call = called(launch.kernel, launch.args, options, Configuration.of(shipped))
        call.function[launch.grid](*map(self.on_device, call.args), **call.keywords)


def called(kernel: JITFunction[FunctionType], args: Sequence[Any], given: Mapping[str, Any]) -> LiveLaunch | None:
    """Returns the launch that a call of `JITFunction.run` makes. Returns None if the arguments do not fit, so that
    triton reports the error."""
    try:
        keywords = {name: value for name, value in given.items() if name not in ("grid", "warmup")}
        grid, bound = given["grid"], dict(zip(kernel.arg_names, args, strict=False))
        for parameter in kernel.params[len(args) :]:
            if parameter.name not in keywords and not parameter.has_default:
                return None
            bound[parameter.name] = keywords.get(parameter.name, parameter.default)
        size = tuple(map(int, grid(bound) if callable(grid) else grid))
        options = {name: value for name, value in keywords.items() if name not in bound and value is not None}
        return LiveLaunch(kernel, size, tuple(map(_plain, bound.values())), options=options)
    except Exception:
        return None


def _plain(value: Any) -> CallValue:
    """Returns an argument without Triton's own types."""
    plain: CallValue = value
    if type(value) in SCALARS or hasattr(value, "data_ptr"):
        return plain
    kind = type(value).__name__
    if kind == "constexpr":
        plain = value.value
    if kind == "TensorDescriptor":
        shape, strides, blocks = (tuple(map(int, part)) for part in (value.shape, value.strides, value.block_shape))
        plain = LiveDescriptor(value.base, shape, strides, blocks, value.padding)
    return plain


def _autotuned(autotuner: Autotuner) -> Autotuned:
    """Describes an autotuner. Configurations with a value that is no scalar are left out."""
    every = [each.all_kwargs() for each in autotuner.configs]
    return Autotuned(
        tuple(each for each in every if all(isinstance(value, SCALARS) for value in each.values())),
        tuple(autotuner.keys), tuple(autotuner.restore_value), tuple(autotuner.reset_to_zero),
    )  # fmt: skip
