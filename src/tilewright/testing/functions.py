"""Defines an engine for tests of checks, which runs a Python function instead of the kernel.

    FunctionEngine(task, lambda launch: launch["y"].__setitem__(..., 2 * launch["x"]))

The function gets a `FunctionLaunch` with the memory of the tensors, so it can make every mistake of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.records import Configuration, Failed
from tilewright.task.task import Task
from tilewright.task.tensors import Dims
from tilewright.verify.arrays import Array
from tilewright.verify.engine import ONCE, Ran, RunOptions
from tilewright.verify.images import Image


@dataclass(frozen=True)
class FunctionLaunch:
    """One launch. It is the argument of the function."""

    arrays: Mapping[str, Array]  # writable; an output that shares memory with an input is the input's array
    images: Mapping[str, Image]
    dims: Dims
    number: int  # the number of launches on these buffers before this one
    seed: int

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]


class FunctionEngine:
    """Runs ``function`` for each launch.

    function: raises ValueError if the launch must fail; may return a `Ran`, for example with findings.
    name: the engine's name in the verdict.
    """

    def __init__(self, task: Task, function: Callable[[FunctionLaunch], Any], name: str = "interpreter") -> None:
        self.task, self.function, self.name = task, function, name
        self.runs, self.stand_in = 0, ""

    def run(
        self, configuration: Configuration, dims: Dims, images: Mapping[str, Image], options: RunOptions = ONCE
    ) -> Ran:
        self.runs += 1
        arrays = {name: images[options.alias.get(name, name)].array for name in images}
        ran = Ran(kernels=("kernel",) * options.launches, declared="kernel")
        for number in range(options.launches):
            try:
                result = self.function(FunctionLaunch(arrays, images, dims, number, options.seed))
            except ValueError as error:
                return replace(ran, failed=Failed("race", str(error)))
            ran = result if isinstance(result, Ran) else ran
        return ran

    def close(self) -> None:
        pass
