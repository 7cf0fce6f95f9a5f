"""Trials: the launch of each configuration of a space, made by the caller's functions.

A space is a list of any objects. The grid, kernel, arguments and hints are functions of one configuration. If such a
function raises, that configuration fails and the others go on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, SupportsIndex, TypeAlias, TypeGuard, TypeVar

from tilewright.errors import RequestError, in_one_line
from tilewright.records import Failed, Value
from tilewright.runtime.arrays import CallValue, KernelObject, facts_of
from tilewright.task.tensors import ALIGNED_TO, ITEM_BYTES, ArraySpec

if TYPE_CHECKING:
    from tilewright.runtime.search.specified import SpecifiedTrial

Config = TypeVar("Config")
Grid: TypeAlias = Sequence[SupportsIndex] | SupportsIndex


@dataclass(frozen=True)
class Trial:
    """One configuration and its launch.

    config: the caller's own object.
    label: the configuration as text, e.g. ``TILE_M=128 occupancy=2``.
    kernel: the object that is launched, with the hints applied.
    arguments: the caller's function, which may return new clones at each call.
    """

    config: Any
    label: str
    kernel: KernelObject
    grid: tuple[int, ...]
    arguments: Callable[[], tuple[CallValue, ...]]
    hints: Mapping[str, Value]

    is_predicted: ClassVar[bool] = True
    """Whether the time of a launch can be predicted, because its work can be counted in its Tile IR."""

    @property
    def changed_before(self) -> frozenset[str]:
        """The names of the arrays that `before` changes. Default: none."""
        return frozenset()

    def specified(self) -> SpecifiedTrial | FailedTrial:
        """Describes the arguments. Returns a `FailedTrial` if the caller's function raises."""
        from tilewright.runtime.search.specified import specified

        return specified(self)

    def failed(self, failure: Failed) -> FailedTrial:
        """Adds the error class that the replaced search reports for a failure of the front end or the compiler."""
        from tilewright.runtime.search.specified import error_class

        return FailedTrial(failure.stage, failure.reason, error=error_class(failure))

    def before(self) -> None:
        """Runs the caller's functions that precede every launch, untimed. Default: there are none."""

    def launch(self, args: tuple[CallValue, ...]) -> None:
        """Queues the launch on torch's current stream."""
        import cuda.tile as ct
        import torch

        ct.launch(torch.cuda.current_stream().cuda_stream, self.grid, self.kernel, args)


@dataclass(frozen=True)
class FailedTrial(Failed):
    """A configuration that cannot be launched, with the class of the error."""

    label: str = ""
    error: type[Exception] = field(default=Exception)


Status: TypeAlias = Literal["timed", "duplicate", "pruned", "failed", "wrong"]


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome of one configuration.

    us: median of the samples, or for a duplicate the median of its representative; None if not timed.
    error_margin_us: half of the distribution-free 95 % interval of the median.
    stage: the stage that failed, such as ``front end``, ``compile`` or ``race``.
    """

    label: str
    status: Status
    reason: str
    us: float | None = None
    error_margin_us: float | None = None
    samples: int = 0
    stage: str | None = None
    error: type[Exception] | None = None


def trials(
    space: Sequence[Config],
    grid_fn: Callable[[Config], Grid],
    kernel: KernelObject | Callable[[Config], KernelObject],
    args_fn: Callable[[Config], Sequence[CallValue]],
    hints_fn: Callable[[Config], Mapping[str, Value] | None] | None = None,
) -> list[Trial | FailedTrial]:
    """Returns a trial for each configuration of ``space``, in order, or a `FailedTrial` if a function raises.
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
            launched, grid = hinted(base, hints), _grid(grid_fn(config))
            return Trial(config, shown, launched, grid, lambda: tuple(args_fn(config)), hints)
        except Exception as error:  # the caller's own code, for this configuration
            return FailedTrial("launch", in_one_line(error), shown, type(error))

    return [trial(config) for config in configurations]


def checked_space(space: Sequence[Config]) -> list[Config]:
    """Returns the configurations of a space. Raises RequestError, with the fix, if the space is empty or no list."""
    kind = f"the search space is a {type(space).__name__}"
    if isinstance(space, Mapping):
        fix = "pass list(space.values()), or one dict for each configuration in a list"
        raise RequestError(f"{kind}, not a list of configurations: {fix}")
    if isinstance(space, Iterator):
        raise RequestError(f"{kind}, which can be read only once: pass list(space)")
    if isinstance(space, (str, bytes)) or not (hasattr(space, "__len__") and hasattr(space, "__iter__")):
        raise RequestError(f"{kind}: pass a list of configurations")
    if not len(space):
        raise RequestError("the search space is empty: give at least one configuration")
    return list(space)


def label(config: Any) -> str:
    """Returns a configuration as one line of text: its fields, or its `repr` if it has none."""
    values: Mapping[str, Hashable] = {}
    if isinstance(config, Mapping):
        values = config
    elif hasattr(config, "_asdict"):
        values = config._asdict()
    elif is_dataclass(config) and not isinstance(config, type):
        values = {field.name: getattr(config, field.name) for field in fields(config)}
    elif type(config).__module__ != "builtins" and hasattr(config, "__dict__"):
        values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    shown = (f"{name}={'auto' if value is None else value}" for name, value in values.items())
    return " ".join(shown if values else repr(config).split())


def array_spec(tensor: CallValue, name: str = "") -> ArraySpec:
    """Describes an array. Raises RequestError for anything else, and for a dtype that no kernel takes."""
    facts = facts_of(tensor)
    if facts is None:
        kind = type(tensor).__name__
        raise RequestError(f"a {kind} is no array: it has neither data_ptr() nor __cuda_array_interface__")
    dtype, shape, strides, address = facts
    if dtype not in ITEM_BYTES:
        raise RequestError(f"arrays of dtype {dtype} are not known; known: {', '.join(ITEM_BYTES)}")
    return ArraySpec(name, shape, dtype, strides, address % ALIGNED_TO)


def _grid(given: Grid) -> tuple[int, ...]:
    grid = tuple(operator.index(n) for n in (given if isinstance(given, Sequence) else (given,)))
    if not 1 <= len(grid) <= 3 or any(n < 1 for n in grid):
        raise ValueError(f"the grid {given} is not 1 to 3 positive integers")
    return grid


def _is_kernel(kernel: object) -> TypeGuard[KernelObject]:
    from tilewright.languages import is_kernel

    return is_kernel(kernel)
