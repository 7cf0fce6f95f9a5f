"""Gradient checkpointing: recognized, but never applied, because it makes each step slower."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.program.changes.base import ChangeSite, NearMiss, ProgramChange
from tilewright.program.reading.module import ReadModule

NAMES = tuple(f"torch.utils.checkpoint.{name}" for name in ("checkpoint", "checkpoint_sequential"))


class GradientCheckpointing(ProgramChange):
    name = "gradient_checkpointing"
    about = "computes activations a second time in the backward pass instead of storing them"
    words = ("checkpointing", "gradient checkpoint*", "activation checkpoint*", "recomput*", "rematerial*")
    never = ("inapplicable", "makes each step slower, because activations are computed twice; it saves memory only")

    def look(self, module: ReadModule) -> Iterator[ChangeSite | NearMiss]:
        return iter(())

    def present(self, module: ReadModule) -> str:
        call = next(module.calls(*NAMES), None)
        return f"{module.place(call)} calls torch.utils.checkpoint" if call else ""


CHANGE = GradientCheckpointing()
