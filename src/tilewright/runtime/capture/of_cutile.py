"""Captures launches of cuTile kernels: a hook replaces `ct.launch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.records import Value
from tilewright.runtime.arrays import CallValue, KernelObject, Stream
from tilewright.runtime.capture.described import DescribedLaunch, described
from tilewright.runtime.capture.language import CapturedLanguage, LaunchRecorder, LiveLaunch
from tilewright.runtime.swapping import swap

if TYPE_CHECKING:
    from tilewright.task.task import Launch

SIGNATURE = "(stream, grid, kernel, kernel_args, /, *, programmatic_dependent_launch=False)"
"""The signature of `ct.launch` in cuda-tile 1.7."""
INSIDE = "cuda.tile.", "cutile_cache", "tilewright."
"""Prefixes of the names of modules that keep the real `ct.launch`: modules of cuda-tile and of Tilewright."""

Grid: TypeAlias = Sequence[int]
Args: TypeAlias = Sequence[CallValue]
LaunchCall: TypeAlias = Callable[..., None]
Skips: TypeAlias = Mapping[Any, Iterable[None]]


class CapturedCuTile(CapturedLanguage):
    """Implements `language.CapturedLanguage`."""

    name, module = "cutile", "cuda.tile"
    tried = MappingProxyType({"occupancy": (None, 1, 2, 4), "num_ctas": (None, 1, 2), "num_worker_warps": (None, 8)})

    def start(self, recorder: LaunchRecorder) -> None:
        import cuda.tile as ct

        self._original = ct.launch
        self._hook = self.hook(ct.launch, recorder)
        swap(self._original, self._hook, INSIDE)

    def stop(self) -> None:
        swap(self._hook, self._original, INSIDE)

    def hook(self, original: LaunchCall, recorder: LaunchRecorder) -> LaunchCall:
        """Returns the function that the program calls instead of ``original``."""

        def examine(stream: Stream, grid: Grid, kernel: KernelObject, args: Args, more: Mapping[str, bool]) -> None:
            launch = LiveLaunch(kernel, grid, args, stream)
            recorder.examine(self, launch, lambda: original(stream, grid, kernel, args, **more))

        def failed(error: BaseException, kernel: KernelObject, grid: Grid, args: Args) -> None:
            recorder.failed(error, self, LiveLaunch(kernel, grid, args))

        return launch_hook(original, recorder.skips, examine, failed)

    def function_of(self, kernel: KernelObject) -> FunctionType:
        function: FunctionType = kernel._pyfunc
        return function

    def settings(self, kernel: KernelObject) -> str:
        return repr(kernel._compiler_options)

    def constants(self, kernel: KernelObject) -> tuple[bool, ...]:
        from tilewright.languages.cutile.private import parameter_annotations

        return tuple(annotation.constant for annotation in parameter_annotations(kernel))

    def described(self, launch: LiveLaunch) -> DescribedLaunch:
        return described(launch.kernel, launch.grid, launch.args)

    def with_hints(self, kernel: KernelObject, hints: Mapping[str, Value]) -> KernelObject:
        return kernel.replace_hints(**hints) if hints else kernel

    def launch(self, launch: Launch, shipped: Mapping[str, Value]) -> None:
        import cuda.tile as ct
        import torch

        from tilewright.source.cutile import HINTS

        kernel = self.with_hints(launch.kernel, {name: shipped[name] for name in HINTS if name in shipped})
        ct.launch(torch.cuda.current_stream(), launch.grid, kernel, launch.args)


def launch_hook(original: LaunchCall, skips: Skips, examine: LaunchCall, failed: LaunchCall) -> LaunchCall:
    """Returns the function that the program calls instead of `ct.launch`. It passes its arguments on to ``original``.

    Most launches only pass through, so the function is as short as Python allows.

    skips: an iterator for each kernel object. Each item lets one launch pass: taking an item needs no call.
    examine(stream, grid, kernel, args, keywords): makes the launch, if no item is left or the kernel is not known.
    failed(error, kernel, grid, args): is called if a launch that passed through raised.
    """
    if getattr(original, "__text_signature__", None) != SIGNATURE:  # other keywords are possible: a slower hook

        def launch_with_any(stream: Stream, grid: Grid, kernel: KernelObject, args: Args, /, **more: bool) -> None:
            return examine(stream, grid, kernel, args, more)

        return update_wrapper(launch_with_any, original)

    def launch(
        stream: Stream, grid: Grid, kernel: KernelObject, kernel_args: Args, /, *,
        programmatic_dependent_launch: bool = False,
    ) -> None:  # fmt: skip
        try:
            skip = skips[kernel]
        except Exception:  # not known, or not hashable
            skip = ()
        try:
            for _ in skip:
                if programmatic_dependent_launch is False:  # spares `ct.launch` parsing a keyword
                    return original(stream, grid, kernel, kernel_args)
                return original(
                    stream, grid, kernel, kernel_args,
                    programmatic_dependent_launch=programmatic_dependent_launch,
                )  # fmt: skip
        except BaseException as error:
            failed(error, kernel, grid, kernel_args)
            raise
        more = {"programmatic_dependent_launch": programmatic_dependent_launch}
        return examine(stream, grid, kernel, kernel_args, more)

    return update_wrapper(launch, original)
