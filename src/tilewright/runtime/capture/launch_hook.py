"""The function that a program calls instead of `ct.launch` while it is recorded.

Most launches only pass through, so this is as short as Python allows. ``skips`` has an iterator for each kernel
object, and each item of it lets one launch pass. A loop takes the item in one step, without a call. If there is no
item left, or if the kernel is not known, ``look`` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import TypeAlias

from tilewright.runtime.arrays import CallValue, KernelObject, Stream

SIGNATURE = "(stream, grid, kernel, kernel_args, /, *, programmatic_dependent_launch=False)"
"""Of `ct.launch` in cuda-tile 1.7."""

LaunchFunction: TypeAlias = Callable[..., None]
Skips: TypeAlias = Mapping[KernelObject, Iterable[None]]


def launch_hook(original: LaunchFunction, skips: Skips, look: LaunchFunction, failed: LaunchFunction) -> LaunchFunction:
    """A function that passes its arguments on to ``original``.

    look(stream, grid, kernel, args, keywords): makes the launch. failed(error, kernel, grid, args): is called if a
    launch that passed through raised.
    """
    known = getattr(original, "__text_signature__", None) == SIGNATURE
    made = (_with_keyword if known else _with_any)(original, skips, look, failed)
    return update_wrapper(made, original)


def _with_keyword(
    original: LaunchFunction, skips: Skips, look: LaunchFunction, failed: LaunchFunction
) -> LaunchFunction:
    """For the known signature: without a dictionary of keywords."""

    def launch(
        stream: Stream, grid: Sequence[int], kernel: KernelObject, kernel_args: Sequence[CallValue], /, *,
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
        return look(stream, grid, kernel, kernel_args, more)

    return launch


def _with_any(original: LaunchFunction, skips: Skips, look: LaunchFunction, failed: LaunchFunction) -> LaunchFunction:
    """For a `ct.launch` that may take other keywords."""

    def launch(
        stream: Stream, grid: Sequence[int], kernel: KernelObject, kernel_args: Sequence[CallValue], /, **more: bool
    ) -> None:
        try:
            skip = skips[kernel]
        except Exception:
            skip = ()
        try:
            for _ in skip:
                if not more:  # spares taking the dictionary apart
                    return original(stream, grid, kernel, kernel_args)
                return original(stream, grid, kernel, kernel_args, **more)
        except BaseException as error:
            failed(error, kernel, grid, kernel_args)
            raise
        return look(stream, grid, kernel, kernel_args, more)

    return launch
