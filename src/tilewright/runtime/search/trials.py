"""What each configuration of a space would launch, from the functions that a caller gives.

A space is a list of anything; grid, kernel, arguments and hints are functions of one of its configurations. What
such a function raises is that configuration's failure and no other's; what is wrong with the space itself is one
line that names the fix.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from tilewright.errors import RequestError, in_one_line
from tilewright.records import Failed
from tilewright.runtime.arrays import facts_of
from tilewright.task.tensors import ITEM_BYTES, ArraySpec

ALIGNED_TO = 256
"""Bytes. `ArraySpec.address_offset` counts from a multiple of this."""


@dataclass(frozen=True)
class Trial:
    """One configuration and what it would launch.

    config: the caller's own object, handed back unchanged.
    label: how it is shown, e.g. ``TILE_M=128 occupancy=2``.
    kernel: with the hints applied; the object that is launched.
    arguments: the caller's function. It may hand out new clones each time.
    """

    config: Any
    label: str
    kernel: Any
    grid: tuple[int, ...]
    arguments: Callable[[], tuple[Any, ...]]
    hints: Mapping[str, int | None]


@dataclass(frozen=True)
class FailedTrial(Failed):
    """A configuration that cannot even be described, with the error of the caller's function."""

    label: str = ""
    config: Any = None
    error: type[Exception] = field(default=Exception)


def trials(
    space: Any,
    grid_fn: Callable[[Any], Any],
    kernel: Any,
    args_fn: Callable[[Any], Any],
    hints_fn: Callable[[Any], Mapping[str, Any] | None] | None = None,
) -> list[Trial | Failed]:
    """A trial for each configuration of ``space``, in its order; a `FailedTrial` where a function raises.

    kernel: a kernel, or a function of the configuration that returns one.
    Raises RequestError for a space that is no list: a generator, a dict, an empty one.
    """
    configurations = checked_space(space)
    hinted = _Hinted()

    def trial(config: Any) -> Trial | Failed:
        shown = label(config)
        try:
            hints = dict(hints_fn(config) or {}) if hints_fn is not None else {}
            base = kernel if _is_kernel(kernel) else kernel(config)
            return Trial(
                config, shown, hinted(base, hints), _grid(grid_fn(config)), lambda: tuple(args_fn(config)), hints
            )
        except Exception as error:  # the caller's own code, for this configuration
            return FailedTrial("launch", in_one_line(error), shown, config, type(error))

    return [trial(config) for config in configurations]


def checked_space(space: Any) -> list[Any]:
    """The configurations of a space. Raises RequestError with the fix for what is no list (Part 7, check 5)."""
    if isinstance(space, Mapping):
        raise RequestError("the search space is a dict, not a list of configurations: pass list(space.values()), "
                           "or one dict for each configuration in a list")  # fmt: skip
    if isinstance(space, Iterator):
        raise RequestError(f"the search space is a {type(space).__name__}, which can be read only once: "
                           "pass list(space)")  # fmt: skip
    if isinstance(space, (str, bytes)) or not (hasattr(space, "__len__") and hasattr(space, "__iter__")):
        raise RequestError(f"the search space is a {type(space).__name__}: pass a list of configurations")
    configurations = list(space)
    if not configurations:
        raise RequestError("the search space is empty: give at least one configuration")
    return configurations


def label(config: Any) -> str:
    """A configuration in one line: its fields where it has any."""
    found: Mapping[str, Any] | None = None
    if isinstance(config, Mapping):
        found = config
    elif hasattr(config, "_asdict"):
        found = config._asdict()
    elif is_dataclass(config) and not isinstance(config, type):
        found = {one.name: getattr(config, one.name) for one in fields(config)}
    elif type(config).__module__ != "builtins" and hasattr(config, "__dict__"):
        found = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    if not found:
        return " ".join(repr(config).split())
    return " ".join(f"{name}={'auto' if value is None else value}" for name, value in found.items())


def array_spec(tensor: Any, name: str = "") -> ArraySpec:
    """Shape, strides, dtype and alignment of a torch tensor on any device, or of an object with
    ``__cuda_array_interface__``. Raises RequestError for anything else, and for dtypes that no kernel takes."""
    facts = facts_of(tensor)
    if facts is None:
        raise RequestError(f"a {type(tensor).__name__} is no array: it has neither data_ptr() nor "
                           "__cuda_array_interface__")  # fmt: skip
    dtype, shape, strides, address = facts
    if dtype not in ITEM_BYTES:
        raise RequestError(f"arrays of dtype {dtype} are not known; known: {', '.join(ITEM_BYTES)}")
    return ArraySpec(name, shape, dtype, strides, address % ALIGNED_TO)


def _grid(given: Any) -> tuple[int, ...]:
    """1 to 3 positive numbers."""
    grid = tuple(operator.index(n) for n in (given if isinstance(given, Sequence) else (given,)))
    if not 1 <= len(grid) <= 3 or any(n < 1 for n in grid):
        raise ValueError(f"the grid {given} is not 1 to 3 positive integers")
    return grid


def _is_kernel(kernel: Any) -> bool:
    from tilewright.languages import is_kernel

    return is_kernel(kernel)


class _Hinted:
    """One kernel object for equal hints: each new one starts with an empty JIT cache (requirements A-47)."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, tuple[tuple[str, str], ...]], tuple[Any, Any]] = {}

    def __call__(self, kernel: Any, hints: Mapping[str, Any]) -> Any:
        if not _is_kernel(kernel):
            raise TypeError(f"the kernel is a {type(kernel).__name__}; give a kernel, or a function that returns one")
        if not hints:
            return kernel
        key = (id(kernel), tuple(sorted((name, repr(value)) for name, value in hints.items())))
        if key not in self._made:
            self._made[key] = (kernel, kernel.replace_hints(**hints))  # the first keeps its id from being reused
        return self._made[key][1]
