"""An engine runs a kernel for a check: the interpreter or a GPU, behind one method.

An engine copies the images' bytes to where it runs the kernel, runs it, and copies the bytes back into
the images. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tilewright.records import Configuration, Failed
from tilewright.task.tensors import Dims
from tilewright.verify.images import Image

if TYPE_CHECKING:
    from tilewright.tileir.watch.findings import Finding

NO_ALIAS: Mapping[str, str] = {}


@dataclass(frozen=True)
class RunOptions:
    """How an engine runs a kernel."""

    launches: int = 1
    seed: int = 0
    """Sets the order of the blocks, where the engine can."""
    poison: int = 0xFF
    """The byte that memory is made of which nobody has written."""
    alias: Mapping[str, str] = field(default_factory=dict)
    """Output → input whose memory the kernel gets in its place (in place, as deployed)."""


ONCE = RunOptions()


@dataclass(frozen=True)
class Ran:
    """What happened when a kernel ran; the outputs are in the images."""

    findings: tuple[Finding, ...] = ()
    failed: Failed | None = None
    refused: str | None = None
    """Why the engine cannot run this kernel, such as an operation that the interpreter lacks. It says nothing of the
    kernel; ``failed`` is the kernel's own failure."""
    kernels: tuple[str, ...] | None = None
    """Names of the kernels that really ran; None where the engine does not know."""
    declared: str | None = None
    """Name of the kernel that the launch declares; the name of one that ran contains it."""
    undefined: tuple[str, ...] = ()
    """Where the kernel loaded elements that have no value, as far as the engine knows."""
    touched_early: tuple[str, ...] = ()
    """Outputs that the launch function changed before the kernel ran."""


class Engine(Protocol):
    """One task's kernel, run where the engine runs kernels."""

    name: str
    """``interpreter`` or ``gpu``."""

    def run(
        self, configuration: Configuration, dims: Dims, images: Mapping[str, Image], options: RunOptions = ONCE
    ) -> Ran:
        """Runs the task's kernel on ``images``, one for each tensor."""
        ...

    def close(self) -> None: ...
