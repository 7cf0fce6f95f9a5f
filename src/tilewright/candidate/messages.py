"""The parent's questions to a version's process, and the answers: frozen records, one line of JSON each.

    parent → version    OpenVersion, then DescribeLaunch and LowerLaunch
    version → parent    VersionOpened, LaunchDescribed, LaunchLowered, or VersionFailed

Nothing else comes back. The parent reads an answer by its type, and never runs anything in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.hardware.architectures import Board
from tilewright.languages.base import ListArgument
from tilewright.records import Configuration, Stage, Value
from tilewright.task.tensors import ArraySpec
from tilewright.worker.messages import Message


@dataclass(frozen=True)
class OpenVersion(Message):
    """The version to load. ``where`` and ``files``: as `loading.load_task` takes them."""

    where: str
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SpaceLists:
    """A space without its predicates, which are functions."""

    constants: Mapping[str, tuple[Value, ...]]
    hints: Mapping[str, tuple[int | None, ...]]
    shipped: Configuration
    include: tuple[Configuration, ...]
    only: tuple[Configuration, ...] | None


@dataclass(frozen=True)
class VersionOpened(Message):
    task: str
    """The task's name."""
    space: SpaceLists
    backward: SpaceLists | None
    """The space of its gradient; None if the task has no gradient."""


@dataclass(frozen=True)
class DescribeLaunch(Message):
    """Runs the version's launch function on specifications of arrays."""

    configuration: Configuration
    dims: Mapping[str, Value]
    arrays: Mapping[str, ArraySpec]
    board: Board
    backward: bool


@dataclass(frozen=True)
class ArrayList:
    """A list of arrays as one argument."""

    arrays: tuple[ArraySpec, ...]


@dataclass(frozen=True)
class OtherValue:
    """An argument that is no number and no array, such as a dtype: its text."""

    text: str


@dataclass(frozen=True)
class LaunchDescribed(Message):
    language: str
    kernel: str
    """The beginning of the compiled kernel's name."""
    grid: tuple[int, ...]
    args: tuple[ArraySpec | ArrayList | OtherValue | int | float | bool | str | None, ...]
    """The arguments of the launch, in the kernel's order."""
    arguments: tuple[ArraySpec | ListArgument | int | float | bool, ...]
    """The arguments of the compiled entry."""
    hints: Mapping[str, int | None]
    """The hints of the kernel's decorator, for the architecture of the launch."""
    constants: tuple[bool, ...]
    """For each parameter, whether it is a constant of the compiled code."""


@dataclass(frozen=True)
class LowerLaunch(Message):
    """Runs the language's front end on a launch."""

    launch: DescribeLaunch
    hints: Mapping[str, int | None]


@dataclass(frozen=True)
class LaunchLowered(Message):
    symbol: str
    code: str
    """Base64."""
    opt_level: int


@dataclass(frozen=True)
class VersionFailed(Message):
    stage: Stage
    reason: str
