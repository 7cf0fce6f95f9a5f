"""What a program calls in place of `ct.launch` while it is recorded.

Most launches only pass through, so this is as short as Python allows. ``skips`` holds an iterator for each kernel
object: an item of it lets one launch pass. A loop takes that item without a call, as one step, and goes to ``look``
where there is none left, or where the kernel is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any

SIGNATURE = "(stream, grid, kernel, kernel_args, /, *, programmatic_dependent_launch=False)"
"""Of `ct.launch` in cuda-tile 1.7."""

Launch = Callable[..., Any]
Skips = Mapping[Any, Iterable[None]]


def launch_hook(original: Launch, skips: Skips, look: Launch, failed: Launch) -> Launch:
    """Passes on to ``original`` whatever it is given.

    look(stream, grid, kernel, args, keywords): makes the launch. failed(error, kernel, grid, args): hears of a launch
    that passed through and raised.
    """
    known = getattr(original, "__text_signature__", None) == SIGNATURE
    made = (_with_keyword if known else _with_any)(original, skips, look, failed)
    return update_wrapper(made, original)


def _with_keyword(original: Launch, skips: Skips, look: Launch, failed: Launch) -> Launch:
    """For the signature that we know: without a dictionary of keywords."""

    def launch(
        stream: Any, grid: Any, kernel: Any, kernel_args: Any, /, *, programmatic_dependent_launch: Any = False
    ) -> Any:  # fmt: skip
        try:
            skip = skips[kernel]
        except Exception:  # not known, or nothing that a dictionary could know
            skip = ()
        try:
            for _ in skip:
                if programmatic_dependent_launch is False:  # spares `ct.launch` taking a keyword apart
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


def _with_any(original: Launch, skips: Skips, look: Launch, failed: Launch) -> Launch:
    """For a `ct.launch` that may take other keywords."""

    def launch(stream: Any, grid: Any, kernel: Any, kernel_args: Any, /, **more: Any) -> Any:
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
