"""Trials of cuTile kernels, made by the caller's functions.

A space is a list of any objects. The grid, kernel, arguments and hints are functions of one configuration. If such a
function raises, that configuration fails and the others go on.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import SupportsIndex, TypeAlias, TypeGuard

from tilewright.errors import RequestError, in_one_line
from tilewright.records import Failed, Value
from tilewright.runtime.arrays import CallValue, KernelObject, is_array
from tilewright.runtime.search.scratch import arrays_of, have_overlaps, tensor_of
from tilewright.runtime.search.trials import (
    Config,
    FailedTrial,
    SpecifiedTrial,
    Trial,
    array_spec,
    checked_space,
    label,
)
from tilewright.task.task import Launch

Grid: TypeAlias = Sequence[SupportsIndex] | SupportsIndex


@dataclass(frozen=True)
class CuTileTrial(Trial):
    """Implements `Trial` for cuda-tile's own launch. ``find_grid``: returns the grid, if it is found late."""

    find_grid: Callable[[], Grid] | None = None

    def placed(self) -> Trial | FailedTrial:
        if self.find_grid is None:
            return self
        try:
            return replace(self, grid=_grid(self.find_grid()), find_grid=None)
        except Exception as error:  # for this configuration
            return FailedTrial("launch", in_one_line(error), self.label, type(error))

    def specified(self) -> SpecifiedTrial | FailedTrial:
        """If arrays share memory, the front end gets the arrays themselves, because sharing is part of a launch's
        signature."""
        from tilewright.languages import language_of
        from tilewright.languages.cutile.private import python_function

        try:
            args = self.arguments()
            code = python_function(self.kernel).__code__
            names = code.co_varnames[: code.co_argcount]
            if len(names) != len(args):
                raise TypeError(f"the kernel takes {len(names)} arguments, the launch passes {len(args)}")
            arrays = arrays_of(args, names)
            specs = tuple(_spec(value, name) for name, value in zip(names, args, strict=True))
            shares = have_overlaps(arrays) and any(tensor_of(array).is_cuda for array in arrays.values())
        except RequestError as error:
            return FailedTrial("launch", str(error), error=TypeError)
        except Exception as error:  # the caller's own code, for this configuration
            return FailedTrial("launch", in_one_line(error), error=type(error))
        launch = Launch(self.kernel, self.grid, specs)
        lowered = replace(launch, args=args) if shares else launch
        return SpecifiedTrial(self, language_of(self.kernel), launch, lowered, names, frozenset(arrays), shares)

    def failed(self, failure: Failed) -> FailedTrial:
        return FailedTrial(failure.stage, failure.reason, error=_error_class(failure))

    def launch(self, args: tuple[CallValue, ...]) -> None:
        import cuda.tile as ct
        import torch

        ct.launch(torch.cuda.current_stream().cuda_stream, self.grid, self.kernel, args)


def trials(
    space: Sequence[Config],
    grid_fn: Callable[[Config], Grid],
    kernel: KernelObject | Callable[[Config], KernelObject],
    args_fn: Callable[[Config], Sequence[CallValue]],
    hints_fn: Callable[[Config], Mapping[str, Value] | None] | None = None,
    late_grids: bool = False,
) -> list[Trial | FailedTrial]:
    """Returns a trial for each configuration of ``space``, in order, or a `FailedTrial` if a function raises.

    late_grids: whether ``grid_fn`` is called by `Trial.placed`.
    Raises RequestError if ``space`` is not a list (a generator, a dict), or is empty."""
    configurations = checked_space(space)
    made: dict[tuple[int, tuple[tuple[str, str], ...]], tuple[KernelObject, KernelObject]] = {}
    kernel_of = kernel if callable(kernel) and not _is_kernel(kernel) else lambda _: kernel

    def hinted(kernel: KernelObject, hints: Mapping[str, Value]) -> KernelObject:
        """Returns the same kernel object for equal hints, because each new object starts with an empty JIT cache."""
        if not _is_kernel(kernel):
            raise TypeError(f"the kernel is a {type(kernel).__name__}; give a kernel, or a function that returns one")
        if not hints:
            return kernel
        key = (id(kernel), tuple(sorted((name, repr(value)) for name, value in hints.items())))
        if key not in made:
            made[key] = (kernel, kernel.replace_hints(**hints))  # a reference to `kernel`, so that its id is not reused
        return made[key][1]

    def trial(config: Config) -> Trial | FailedTrial:
        shown = label(config)
        try:
            hints = dict(hints_fn(config) or {}) if hints_fn is not None else {}
            base = kernel_of(config)
            launched = hinted(base, hints)
            grid, late = ((1,), lambda: grid_fn(config)) if late_grids else (_grid(grid_fn(config)), None)
            return CuTileTrial(config, shown, launched, grid, lambda: tuple(args_fn(config)), hints, late)
        except Exception as error:  # the caller's own code, for this configuration
            return FailedTrial("launch", in_one_line(error), shown, type(error))

    return [trial(config) for config in configurations]


def _error_class(failure: Failed) -> type[Exception]:
    """Returns the error class of cuda-tile that `cuda.tile.tune.exhaustive_search` reports for this failure."""
    import cuda.tile as ct

    errors: dict[str, type[Exception]] = {"front end": ct.TileError, "compile": ct.TileCompilerExecutionError}
    in_time = not re.search("took longer than its budget|did not end", failure.reason)
    errors["tool"] = ct.TileCompilerExecutionError if in_time else ct.TileCompilerTimeoutError
    return errors.get(failure.stage, RuntimeError)


def _spec(value: CallValue, name: str) -> CallValue:
    if isinstance(value, (list, tuple)) and any(map(is_array, value)):
        return [_spec(item, f"{name}[{n}]") for n, item in enumerate(value)]
    return array_spec(value, name) if is_array(value) else value


def _grid(given: Grid) -> tuple[int, ...]:
    grid = tuple(operator.index(n) for n in (given if isinstance(given, Sequence) else (given,)))
    if not 1 <= len(grid) <= 3 or any(n < 1 for n in grid):
        raise ValueError(f"the grid {given} is not 1 to 3 positive integers")
    return grid


def _is_kernel(kernel: object) -> TypeGuard[KernelObject]:
    from tilewright.languages import is_kernel

    return is_kernel(kernel)
