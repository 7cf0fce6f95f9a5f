"""A trial whose arguments are specifications. The front ends need no arrays and no driver for it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tilewright.errors import RequestError, in_one_line
from tilewright.languages import language_of
from tilewright.languages.base import Argument, Hints, Language, Lowered
from tilewright.languages.cutile.private import python_function
from tilewright.records import Failed
from tilewright.runtime.arrays import CallValue, is_array
from tilewright.runtime.search.scratch import arrays_of, have_overlaps, tensor_of
from tilewright.runtime.search.trials import FailedTrial, Trial, array_spec
from tilewright.task.task import Launch
from tilewright.task.tensors import ArraySpec

if TYPE_CHECKING:
    from tilewright.inspect.work import CountedWork
    from tilewright.tileir.read.tree import TileModule


@dataclass(frozen=True)
class SpecifiedTrial:
    """A trial as data.

    launch: the launch on specifications. lowered: the launch that the front end gets.
    names: the kernel's parameters. arrays: the names of the arrays.
    shares: whether arrays share memory.
    hints: the compiler's hints, unless the kernel object has them.
    """

    trial: Trial
    language: Language
    launch: Launch
    lowered: Launch
    names: tuple[str, ...]
    arrays: frozenset[str]
    shares: bool
    hints: Hints = field(default_factory=dict)

    def arguments(self) -> tuple[Argument, ...]:
        """Returns the arguments of the compiled kernel, without the constants that are in its code."""
        return self.language.arguments(self.launch)

    def counted(self, module: TileModule, lowered: Lowered, seconds: float, blocks: int | None) -> CountedWork | None:
        """Returns the counted work of a launch on ``blocks`` blocks, or on all blocks; None if counting is
        impossible. ``module``: the Tile IR of ``lowered``."""
        from tilewright.inspect.work import count_launch
        from tilewright.tileir.run.launching import Runnable

        flat = (each for arg in self.launch.args for each in (arg if isinstance(arg, list) else [arg]))
        arrays = {each.name: each for each in flat if isinstance(each, ArraySpec)}
        runnable = Runnable(self.launch, module, self.arguments(), lowered.code)
        with suppress(Exception):  # the user's search goes on without a count
            return count_launch(runnable, arrays, seconds, blocks)
        return None


def specified(trial: Trial) -> SpecifiedTrial | FailedTrial:
    """Describes the arguments of a trial of a cuTile kernel. Returns a `FailedTrial` if the caller's function raises.

    If arrays share memory, the front end gets the arrays themselves, because sharing is part of a launch's signature.
    """
    try:
        args = trial.arguments()
        code = python_function(trial.kernel).__code__
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
    launch = Launch(trial.kernel, trial.grid, specs)
    lowered = replace(launch, args=args) if shares else launch
    return SpecifiedTrial(trial, language_of(trial.kernel), launch, lowered, names, frozenset(arrays), shares)


def error_class(failure: Failed) -> type[Exception]:
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
