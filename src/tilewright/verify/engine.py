"""Defines the engine of a check, which runs the kernel with the interpreter or on a GPU.

An engine copies the bytes of the padded buffers (`images`) to its own memory, runs the kernel there, and copies the
bytes back. It does not judge the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tilewright.records import Configuration, Failed
from tilewright.task.tensors import Dims
from tilewright.verify.images import Image

if TYPE_CHECKING:
    from tilewright.tileir.read.tree import Location
    from tilewright.tileir.watch.findings import Finding

NO_ALIAS: Mapping[str, str] = {}


@dataclass(frozen=True)
class RunOptions:
    """The options with which an engine runs a kernel."""

    launches: int = 1
    seed: int = 0  # sets the order of the blocks, if the engine can
    poison: int = 0xFF  # the byte that fills memory before anything is written
    alias: Mapping[str, str] = field(default_factory=dict)  # in a run in place: the input that an output overwrites
    changed_padding: Location | None = None  # a load whose undefined elements are not ``poison``


ONCE = RunOptions()


@dataclass(frozen=True)
class Ran:
    """The outcome of a run of a kernel. The outputs of the kernel are in the padded buffers."""

    findings: tuple[Finding, ...] = ()
    failed: Failed | None = None  # how the kernel failed
    refused: str | None = None  # why the engine cannot run this kernel, such as an operation that the interpreter lacks
    kernels: tuple[str, ...] | None = None  # names of the kernels that ran; None if the engine does not know
    declared: str | None = None  # the exact name of the kernel that was compiled for the launch
    exchanged: str | None = None  # data that threads of a block exchange without a barrier, if the engine knows it
    undefined: tuple[Location, ...] = ()  # loads of elements without a value, if the engine knows them
    touched_early: tuple[str, ...] = ()  # outputs that the launch function changed before the kernel ran
    uploads: int = 0  # copies from the host during the launches, except those for lists of arrays


class Engine(Protocol):
    """Runs the kernel of one task.

    name: ``interpreter`` or ``gpu``.
    stand_in: describes the code that runs instead of the compiled code; empty if the compiled code itself runs.
    """

    name: str
    stand_in: str

    def run(
        self, configuration: Configuration, dims: Dims, images: Mapping[str, Image], options: RunOptions = ONCE
    ) -> Ran:
        """Runs the task's kernel on ``images``, a padded buffer for each tensor."""

    def close(self) -> None: ...
