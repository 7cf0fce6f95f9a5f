"""Defines what prevents that a step is captured in a CUDA graph and replayed, with the remedy of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

HazardKind: TypeAlias = Literal[
    "host-read", "synchronisation", "host-tensor", "data-branch", "data-shape", "changed-address", "baked-value",
    "random-state", "stream", "optimizer", "capture",
]  # fmt: skip
ADVICE: Mapping[HazardKind, str] = MappingProxyType({
    "host-read": "keep the value on the GPU, and read it outside of the step",
    "synchronisation": "wait outside of the step",
    "host-tensor": "make the tensor on the GPU once, or copy it into a buffer of the GPU outside of the step",
    "data-branch": "compute both results, and choose with torch.where",
    "data-shape": "use a mask or padding, so that no shape depends on values",
    "changed-address": "copy into a buffer that is made once",
    "baked-value": "keep the value in a tensor on the GPU; a replay repeats the Python value of the capture",
    "random-state": "use the default generator of the GPU, or register the generator with the graph",
    "stream": "let the stream wait for the current stream before its work, and the current stream for it afterwards",
    "optimizer": "make the optimizer with capturable=True, or leave its step out of the graph",
    "capture": "leave the operation out of the graph",
})  # fmt: skip
"""Kind → the remedy."""


@dataclass(frozen=True)
class CaptureHazard:
    """One line that prevents the capture of a step, or makes a replay compute something else."""

    kind: HazardKind
    path: Path
    line: int
    what: str
    """The code, and what it does, in a few words."""
    in_forward: bool = True
    """Whether the line is in the forward pass of a model. If not, a graph of the model alone is possible."""

    @property
    def place(self) -> str:
        return f"{self.path.name}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.what} ({self.kind}); {ADVICE[self.kind]}"
