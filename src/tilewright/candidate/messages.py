"""The parent's questions to a version's process, and the answers. Each is a frozen record, sent as a line of JSON.

    parent → version    OpenVersion, then DescribeLaunch and LowerLaunch
    version → parent    VersionOpened, LaunchDescribed, LaunchLowered, or VersionFailed

An answer is only data: the parent decodes it by its type, and never executes any of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.hardware.architectures import Board
from tilewright.languages.base import DescriptorParameter, ListArgument
from tilewright.records import Configuration, Stage, Value
from tilewright.task.tensors import ArraySpec
from tilewright.worker.messages import Message


@dataclass(frozen=True)
class OpenVersion(Message):
    """Asks the process to load a version. ``where`` and ``files``: as for `loading.load_task`."""

    where: str
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SpaceLists:
    """A space without its predicates, which are functions."""

    constants: Mapping[str, tuple[Value, ...]]
    hints: Mapping[str, tuple[Value, ...]]
    shipped: Configuration
    include: tuple[Configuration, ...]
    only: tuple[Configuration, ...] | None
    shipped_for: Mapping[str, Configuration]


@dataclass(frozen=True)
class VersionOpened(Message):
    task: str
    """The task's name."""
    space: SpaceLists
    backward: SpaceLists | None
    """The space of the task's backward pass; None if the task has none."""


@dataclass(frozen=True)
class DescribeLaunch(Message):
    """Asks for the launch that the version's launch function returns for these specifications of arrays."""

    configuration: Configuration
    dims: Mapping[str, Value]
    arrays: Mapping[str, ArraySpec]
    board: Board
    in_place: Mapping[str, str]
    """Maps an output to the input whose memory the output may share."""
    backward: bool


@dataclass(frozen=True)
class ArrayList:
    """A list of arrays as one argument."""

    arrays: tuple[ArraySpec, ...]


@dataclass(frozen=True)
class OtherValue:
    """An argument that is neither a number nor an array, such as a dtype, as a string."""

    text: str


@dataclass(frozen=True)
class LaunchDescribed(Message):
    language: str
    kernel: str
    """The prefix of the compiled kernel's name."""
    grid: tuple[int, ...]
    args: tuple[ArraySpec | ArrayList | OtherValue | int | float | bool | str | None, ...]
    """The arguments of the launch, in the kernel's order."""
    arguments: tuple[ArraySpec | ListArgument | int | float | bool, ...]
    """The arguments that the compiled kernel takes."""
    hints: Mapping[str, Value]
    """The hints of the kernel's decorator, for the architecture of the launch."""
    constants: tuple[bool, ...]
    """For each parameter, whether it is a constant of the compiled code."""


@dataclass(frozen=True)
class LowerLaunch(Message):
    """Asks for the code that the language's front end makes of a launch."""

    launch: DescribeLaunch
    hints: Mapping[str, Value]
    tile_ir: bool
    """Whether to ask for Tile IR, even if the language compiles from another form."""


@dataclass(frozen=True)
class LaunchLowered(Message):
    symbol: str
    code: str
    """The lowered code, in base64."""
    options: tuple[tuple[str, Value], ...]
    parameters: tuple[str | DescriptorParameter, ...] | None
    same_as: str
    """`Lowered.same_as`, in base64."""


@dataclass(frozen=True)
class VersionFailed(Message):
    stage: Stage
    reason: str
