"""An engine for tests of the checks: a Python function in the place of the kernel.

    FunctionEngine(task, lambda memory: memory["y"].__setitem__(..., 2 * memory["x"]))

The function gets the images' arrays by name, as the kernel would get their memory, and `FunctionLaunch` says the
rest; it may do wrong whatever a kernel may do wrong.
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
    """One launch as the function sees it."""

    arrays: Mapping[str, Array]
    """The tensors' elements, writable; an output in place of an input is the input's array."""
    images: Mapping[str, Image]
    dims: Dims
    number: int
    """Of the launch on these buffers, from 0."""
    seed: int

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]


class FunctionEngine:
    """Runs ``function`` for each launch; ``name`` is what the verdict calls the engine.

    The function may return a `Ran` (of the kernels' names, of findings) in the place of the usual one, or
    raise ValueError for a launch that fails.
    """

    def __init__(self, task: Task, function: Callable[[FunctionLaunch], Any], name: str = "interpreter") -> None:
        self.task, self.function, self.name = task, function, name
        self.runs = 0

    def run(
        self, configuration: Configuration, dims: Dims, images: Mapping[str, Image], options: RunOptions = ONCE
    ) -> Ran:
        """As `engine.Engine.run`."""
        self.runs += 1
        arrays = {name: images[options.alias.get(name, name)].array for name in images}
        ran = Ran(kernels=("kernel",), declared="kernel")
        for number in range(options.launches):
            try:
                said = self.function(FunctionLaunch(arrays, images, dims, number, options.seed))
            except ValueError as error:
                return replace(ran, failed=Failed("race", str(error)))
            ran = said if isinstance(said, Ran) else ran
        return ran

    def close(self) -> None:
        """Nothing is held."""
