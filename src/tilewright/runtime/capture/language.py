"""The parts of capture that depend on the kernel language: finding a program's launches, and launching again.

`start` and `stop` work in the user's program, so they import no more than that program has imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from tilewright.records import Value
from tilewright.runtime.arrays import CallValue, Stream

if TYPE_CHECKING:
    from tilewright.runtime.capture.described import Argument, DescribedLaunch
    from tilewright.task.task import Launch

R = TypeVar("R")
Make: TypeAlias = Callable[[], R]
"""A function that makes the launch as the program asked for it."""


class LiveLaunch(NamedTuple):
    """A launch as the program makes it. ``args``: in the order of the kernel's parameters."""

    kernel: Any
    grid: Sequence[int]
    args: Sequence[CallValue]
    stream: Stream = None
    options: Mapping[str, Any] = MappingProxyType({})
    """Compiler options that are given with the launch itself."""


class LaunchRecorder(Protocol):
    """The part of `recorder.Recorder` that hooks use."""

    skips: dict[Hashable, Iterable[None]]

    def examine(self, language: CapturedLanguage, launch: LiveLaunch, make: Make[R]) -> R | None: ...
    def failed(self, error: BaseException, language: CapturedLanguage, launch: LiveLaunch) -> None: ...


class CapturedLanguage(ABC):
    """A language whose launches are recorded."""

    name: str
    """The name of the language, as in `tilewright.languages`."""
    module: str
    """The module that a program imports before it launches."""
    tried: Mapping[str, tuple[Value, ...]]
    """The values of each hint that the space of a captured task tries in addition to the captured value."""
    where = ""
    """The Python source of a constraint on the hints, for the space of a captured task; empty for none."""
    has_pointers = False
    """Whether a kernel gets the strides and the number of elements of an array as integers."""

    # In the program ------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, recorder: LaunchRecorder) -> None:
        """Makes the program's launches pass through ``recorder``. Raises RequestError for an unknown version."""

    @abstractmethod
    def stop(self) -> None:
        """Undoes `start`."""

    @abstractmethod
    def function_of(self, kernel: Any) -> FunctionType:
        """Returns the kernel's Python function."""

    @abstractmethod
    def described(self, launch: LiveLaunch) -> DescribedLaunch: ...

    @abstractmethod
    def constants(self, kernel: Any) -> tuple[bool, ...]:
        """Returns, for each parameter, whether it is a constant."""

    def handle(self, kernel: Any) -> Hashable:
        """Returns the key of a kernel object in `Recorder.skips`. Default: the object itself."""
        handle: Hashable = kernel
        return handle

    def settings(self, kernel: Any) -> str:
        """Returns the kernel object's own hints as text. Default: none."""
        return ""

    # From a description --------------------------------------------------------------------------------

    @abstractmethod
    def with_hints(self, kernel: Any, hints: Mapping[str, Value]) -> Any:
        """Returns the kernel object that a program launches to get these hints."""

    def computed(self, kernel: Any) -> frozenset[str]:
        """Returns the parameters whose values the kernel object computes itself. Default: none."""
        return frozenset()

    def passed(self, kernel: Any, launch: DescribedLaunch) -> tuple[Argument, ...]:
        """Returns the arguments that a task passes by position. The configuration names the others. Default: all
        arguments."""
        return launch.arguments

    def variants(self, point: Mapping[str, Value]) -> tuple[dict[str, Value], ...]:
        """Returns the configurations to try in place of a configuration of an autotuner. Default: only that
        configuration."""
        return (dict(point),)

    def dtype(self, name: str) -> CallValue:
        """Returns the argument for a parameter that is a dtype. Default: the name of the dtype."""
        return name

    def on_device(self, value: CallValue) -> CallValue:
        """Converts an argument of a task's launch to the type that the language's own launch takes. Default: the
        argument itself."""
        return value

    def dtype_text(self, name: str) -> str:
        """Returns the text of a dtype argument for a task file. Default: the name in quotes."""
        return repr(name)

    @abstractmethod
    def launch(self, launch: Launch, shipped: Mapping[str, Value]) -> None:
        """Launches a kernel on arrays of a GPU. ``shipped``: the captured knobs and hints."""
