"""Trials: the launch of each configuration of a space. Each language has its own kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from tilewright.errors import RequestError
from tilewright.records import Failed, Value
from tilewright.runtime.arrays import CallValue, facts_of
from tilewright.task.task import flat_arguments
from tilewright.task.tensors import ALIGNED_TO, ITEM_BYTES, ArraySpec

if TYPE_CHECKING:
    from tilewright.inspect.work import CountedWork
    from tilewright.languages.base import Argument, Hints, Language, Lowered
    from tilewright.task.task import Launch
    from tilewright.tileir.read.tree import TileModule

Config = TypeVar("Config")


@dataclass(frozen=True)
class Trial(ABC):
    """One configuration and its launch.

    config: the caller's own object.
    label: the configuration as text, e.g. ``TILE_M=128 occupancy=2``.
    kernel: the object that is launched, with the hints applied.
    arguments: the caller's function, which may return new clones at each call.
    """

    config: Any
    label: str
    kernel: Any
    grid: tuple[int, ...]
    arguments: Callable[[], tuple[CallValue, ...]]
    hints: Mapping[str, Value]

    is_predicted: ClassVar[bool] = True
    """Whether the time of a launch can be predicted, because its work can be counted in its Tile IR."""
    raced_stack: ClassVar[int] = 0
    """Bytes of stack per thread up to which a trial is raced, also if it is more than `screen.most_stack`."""

    @property
    def changed_before(self) -> frozenset[str]:
        """The names of the arrays that `before` changes. Default: none."""
        return frozenset()

    @abstractmethod
    def specified(self) -> SpecifiedTrial | FailedTrial:
        """Describes the arguments. Returns a `FailedTrial` if the caller's function raises."""

    def placed(self) -> Trial | FailedTrial:
        """Returns the trial with its grid. The grid may be found late, while compilers run. Default: the trial."""
        return self

    @abstractmethod
    def failed(self, failure: Failed) -> FailedTrial:
        """Adds the error class that the replaced search reports for a failure of the front end or the compiler."""

    @abstractmethod
    def launch(self, args: tuple[CallValue, ...]) -> None:
        """Queues the launch on torch's current stream. ``args``: what `arguments` returned."""

    def before(self) -> None:  # noqa: B027
        """Runs the caller's functions that precede every launch, untimed. Default: there are none."""


@dataclass(frozen=True)
class FailedTrial(Failed):
    """A configuration that cannot be launched, with the class of the error."""

    label: str = ""
    error: type[Exception] = field(default=Exception)


@dataclass(frozen=True)
class SpecifiedTrial:
    """A trial whose arguments are specifications. The front ends need no arrays and no driver for it.

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

    def specs(self) -> dict[str, ArraySpec]:
        """Returns the specifications of the launch's arrays, also of those in lists, by name."""
        return {each.name: each for each in flat_arguments(self.launch.args) if isinstance(each, ArraySpec)}

    def counted(self, module: TileModule, lowered: Lowered, seconds: float, blocks: int | None) -> CountedWork | None:
        """Returns the counted work of a launch on ``blocks`` blocks, or on all blocks; None if counting is
        impossible. ``module``: the Tile IR of ``lowered``."""
        from tilewright.inspect.work import count_launch
        from tilewright.tileir.run.launching import Runnable

        runnable = Runnable(self.launch, module, self.arguments(), lowered.code)
        with suppress(Exception):  # the user's search goes on without a count
            return count_launch(runnable, self.specs(), seconds, blocks)
        return None


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
