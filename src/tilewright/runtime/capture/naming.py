"""Names that a task file can give to what a launch had: an array of a list has none, others mean something there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.runtime.capture.described import Argument, DescribedLaunch

RESERVED = (
    "kernel", "config", "hardware", "captured", "launch", "launched", "task", "module", "flops", "tw",
)  # fmt: skip
"""What a task file itself defines, and what a launch function gets by name."""


def named(launch: DescribedLaunch) -> DescribedLaunch:
    """The launch with arrays that a function's parameters can be called after: ``xs[0]`` of a list is ``xs_0``."""
    taken = {*RESERVED, *(one.name for one in launch.arguments if one.kind != "array")}
    return replace(launch, arguments=tuple(_named(one, taken) for one in launch.arguments))


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """``wanted``, with underscores where that is a name already."""
    known = set(taken)
    while wanted in known:
        wanted += "_"
    return wanted


def _named(one: Argument, taken: set[str]) -> Argument:
    if one.array is None:
        return replace(one, items=tuple(_named(item, taken) for item in one.items))
    name = free_name(one.name.replace("[", "_").replace("]", ""), taken)
    taken.add(name)
    return replace(one, name=name, array=replace(one.array, name=name))
